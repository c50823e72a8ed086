//go:build !linux

package torture

import "syscall"

// dieWithUs does nothing, because only Linux can end a child process together with its parent. If the torture is killed, its pods keep
// running.
func dieWithUs(*syscall.SysProcAttr) {}
