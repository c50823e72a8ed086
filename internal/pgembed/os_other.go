//go:build !linux

package pgembed

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// canListProcesses is false: without /proc we see the postmaster alone, not its sessions.
const canListProcesses = false

// dieWithOwner does nothing where the kernel has no such service: the next Start stops what was left.
func dieWithOwner(*syscall.SysProcAttr) {}

// servesIn tells whether pid is a living postmaster that we once started on pgdata, by its command line.
func servesIn(pid int, pgdata string) bool {
	out, err := exec.Command("ps", "-ww", "-o", "stat=,command=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return false
	}
	state, command, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	return !strings.HasPrefix(state, "Z") && strings.Contains(command, "postgres -D "+pgdata+" ")
}

// serversIn returns the processes that work in pgdata, as far as we can tell: none beside the postmaster.
func serversIn(string) []int { return nil }
