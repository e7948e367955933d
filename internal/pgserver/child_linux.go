package pgserver

import "syscall"

// dieWithParent makes the kernel stop the server when this process ends in
// whatever way, so that a crashed test leaves no server behind.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }
