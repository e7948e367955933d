//go:build !linux

package pgserver

import "syscall"

// dieWithParent does nothing where the system has no such signal. A server
// that is left behind ends when the next start removes its folder.
func dieWithParent(*syscall.SysProcAttr) {}
