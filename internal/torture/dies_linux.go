package torture

import "syscall"

// dieWithUs makes the kernel kill the child when the thread that starts it ends. It kills stopped ones, too.
func dieWithUs(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
