package pgembed

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"strings"
	"syscall"
)

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
