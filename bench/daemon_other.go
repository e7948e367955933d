//go:build !linux

package main

import "syscall"

// dieWithParent has no counterpart here: a killed bench leaves its daemon behind.
func dieWithParent() *syscall.SysProcAttr { return nil }
