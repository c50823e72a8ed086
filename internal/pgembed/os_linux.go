package pgembed

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
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

// roomy is the number of bytes that must be free for a server's data to be kept in memory. It is several times the size of the databases
// and the log when several packages' tests run concurrently.
const roomy = 4 << 30

// MemoryDir returns an in-memory folder for a server's data, or an empty string if there is not enough space. On disk, most of a test's
// cost is creating its database's 550 files. As on disk, the data outlives the server's processes.
func MemoryDir() string {
	dir := cmp.Or(os.Getenv("PGTEST_MEMORY"), "/dev/shm")
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) < roomy || available() < roomy { // #nosec G115 -- a block's size is positive
		return ""
	}
	return dir
}

// UseMemoryForTemporaryFiles makes [os.TempDir] return [MemoryDir] in this process and in the processes that it starts. It does nothing if
// there is no such folder, or if programs cannot be run from it.
func UseMemoryForTemporaryFiles() error {
	const noExec = 8 // ST_NOEXEC in statvfs(3)
	dir := MemoryDir()
	var fs syscall.Statfs_t
	if dir == "" || syscall.Statfs(dir, &fs) != nil || fs.Flags&noExec != 0 {
		return nil
	}
	return os.Setenv("TMPDIR", dir)
}

// available returns the kernel's estimate of the memory available to programs, in bytes, or 0 if it is unknown.
func available() uint64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
			var kib uint64
			_, _ = fmt.Sscan(text, &kib)
			return kib << 10
		}
	}
	return 0
}
