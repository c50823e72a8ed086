//go:build !linux

package torture

import "syscall"

// dieWithUs does nothing, because only Linux can tie a child's life to its parent's. If the torture is killed, its pods keep running.
func dieWithUs(*syscall.SysProcAttr) {}
