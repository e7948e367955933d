//go:build race

package main

// The program under test is built like the test.
func init() { buildFlags = append(buildFlags, "-race") }
