package daemon

import "syscall"

// dieWithParent makes the kernel end the program with this process: its servers
// are gone then, and it would look for them for ever.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
