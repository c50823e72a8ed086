package torture

import "syscall"

// dieWithUs makes the kernel kill the child, even if the child is frozen, when the thread that started it ends.
func dieWithUs(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
