//go:build !linux

package torture

import "syscall"

// dieWithUs does nothing: only Linux can tie a child's life to its parent's. A run that is killed leaves its pods behind.
func dieWithUs(*syscall.SysProcAttr) {}
