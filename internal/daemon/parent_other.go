//go:build !linux

package daemon

import "syscall"

// dieWithParent has no counterpart here.
func dieWithParent(*syscall.SysProcAttr) {}
