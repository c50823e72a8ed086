//go:build !linux

package pgembed

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// canListProcesses is false because without /proc only the postmaster can be found, not its sessions.
const canListProcesses = false

// dieWithOwner does nothing, because the kernel has no such feature. The next Start stops a server that was left running.
func dieWithOwner(*syscall.SysProcAttr) {}

// servesIn reports whether pid is a living postmaster whose command line contains pgdata.
func servesIn(pid int, pgdata string) bool {
	out, err := exec.Command("ps", "-ww", "-o", "stat=,command=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return false
	}
	state, command, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	return !strings.HasPrefix(state, "Z") && strings.Contains(command, "postgres -D "+pgdata+" ")
}

// serversIn returns nothing, because this system offers no way to find a server's sessions.
func serversIn(string) []int { return nil }

// MemoryDir returns an empty string, because this system has no in-memory file system that is always available.
func MemoryDir() string { return "" }

// UseMemoryForTemporaryFiles does nothing.
func UseMemoryForTemporaryFiles() error { return nil }
