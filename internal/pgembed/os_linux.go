package pgembed

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// canListProcesses reports whether serversIn finds all processes.
const canListProcesses = true

// dieWithOwner makes the kernel shut the child down when the thread that started it ends.
func dieWithOwner(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGINT }

// servesIn reports whether pid is a living PostgreSQL process whose data directory is pgdata. All processes of a server use the data
// directory as their working directory, while a zombie process has no working directory.
func servesIn(pid int, pgdata string) bool {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	cwd, err := os.Readlink(filepath.Join(proc, "cwd"))
	if err != nil {
		return false
	}
	if real, err := filepath.EvalSymlinks(pgdata); err == nil {
		pgdata = real
	}
	exe, err := os.Readlink(filepath.Join(proc, "exe"))
	if err != nil {
		// An exiting process first loses its program, then detaches the shared memory, and loses its working directory last.
		return cwd == pgdata && errors.Is(err, fs.ErrNotExist)
	}
	// If the PostgreSQL package is upgraded while the server is running, the kernel appends "(deleted)" to the name.
	return cwd == pgdata && strings.HasPrefix(filepath.Base(exe), "postgres")
}

// serversIn returns the PIDs of all PostgreSQL processes whose data directory is pgdata.
func serversIn(pgdata string) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && servesIn(pid, pgdata) {
			pids = append(pids, pid)
		}
	}
	return pids
}
