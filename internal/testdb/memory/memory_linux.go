// Package memory finds a folder in memory for the files of tests.
package memory

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// roomy is the number of bytes that must be free for a server's data to be kept in memory. It is several times what the databases and the
// log need for the concurrent tests of several packages.
const roomy = 4 << 30

// Dir returns an in-memory folder for a server's data, or an empty string if there is not enough space. On a disk, most of a test's cost is
// creating the 550 files of its database. Data in memory outlives the server's processes, as it does on a disk.
func Dir() string {
	dir := cmp.Or(os.Getenv("PGTEST_MEMORY"), "/dev/shm")
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) < roomy || available() < roomy {
		return ""
	}
	return dir
}

// UseForTemporaryFiles makes [os.TempDir] return [Dir] in this process and in the processes that it starts. It does nothing if there is no
// such folder, or if programs in it cannot be run.
func UseForTemporaryFiles() error {
	const noExec = 8 // ST_NOEXEC in statvfs(3)
	dir := Dir()
	var fs syscall.Statfs_t
	if dir == "" || syscall.Statfs(dir, &fs) != nil || fs.Flags&noExec != 0 {
		return nil
	}
	return os.Setenv("TMPDIR", dir)
}

// available returns the kernel's estimate of how many bytes of memory are still available to programs, or 0 if the estimate is unknown.
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
