package testdb

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// roomy is how much must be free for a server's data to be kept in memory: what the databases and the log of several
// packages' tests need at the same time, a few times over.
const roomy = 4 << 30

// Dir returns the folder in memory for the data of a server, or empty when there is no room for it. On a disk most of a test's cost is
// the making of the 550 files of its database. Data in memory outlives the server's processes as data on a disk does.
func Dir() string {
	dir := cmp.Or(os.Getenv("PGTEST_MEMORY"), "/dev/shm")
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) < roomy || available() < roomy {
		return ""
	}
	return dir
}

// available is how much memory programs could still get, in bytes, as the kernel estimates it; 0 when it does not say.
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
