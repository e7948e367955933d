package main

import "syscall"

// dieWithParent makes the kernel end the daemon with this process, however it
// ends: its servers are gone then, and it would look for them for ever.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
