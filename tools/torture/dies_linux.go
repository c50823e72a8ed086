package torture

import "syscall"

// dieWithUs makes the kernel kill the child when the thread that started it ends, even if the child is frozen.
func dieWithUs(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
