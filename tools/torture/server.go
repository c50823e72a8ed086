package torture

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// ServerPIDs returns the PIDs of PostgreSQL's processes, with the postmaster first. It identifies the others by their working directory,
// which is the data directory. On systems where it cannot list processes, it returns only the postmaster.
func (w *World) ServerPIDs() []int {
	server := w.Server()
	first := server.PID()
	pids := []int{first}
	data, err := filepath.EvalSymlinks(filepath.Join(server.Dir(), "pgdata"))
	if err != nil {
		return pids
	}
	processes, _ := os.ReadDir("/proc")
	for _, one := range processes {
		pid, err := strconv.Atoi(one.Name())
		if err != nil || slices.Contains(pids, pid) {
			continue
		}
		if cwd, err := os.Readlink(filepath.Join("/proc", one.Name(), "cwd")); err == nil && cwd == data {
			pids = append(pids, pid)
		}
	}
	return pids
}

// thawServer resumes any PostgreSQL processes that the nemesis has left frozen.
func (w *World) thawServer() {
	for _, pid := range w.ServerPIDs() {
		_ = syscall.Kill(pid, syscall.SIGCONT) // the process may already be gone
	}
}
