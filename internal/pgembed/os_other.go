//go:build !linux

package pgembed

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// canListProcesses is false: without /proc only the postmaster is visible, not its sessions.
const canListProcesses = false

// dieWithOwner does nothing where the kernel has no such function: the next Start stops the remaining
// server.
func dieWithOwner(*syscall.SysProcAttr) {}

// servesIn reports whether pid is a living postmaster that was started on pgdata, according to its
// command line.
func servesIn(pid int, pgdata string) bool {
	out, err := exec.Command("ps", "-ww", "-o", "stat=,command=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return false
	}
	state, command, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	return !strings.HasPrefix(state, "Z") && strings.Contains(command, "postgres -D "+pgdata+" ")
}

// serversIn returns no processes: here only the postmaster can be found.
func serversIn(string) []int { return nil }
