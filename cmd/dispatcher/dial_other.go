//go:build !linux

package main

import "syscall"

// setUserTimeout does nothing: only Linux has the option. The keepalives
// find a vanished peer here, if later.
func setUserTimeout(string, string, syscall.RawConn) error { return nil }
