package pgembed

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// pidFile contains the relevant parts of a data directory's postmaster.pid.
type pidFile struct {
	pid   int
	ready bool // whether the server accepts connections
}

// readPIDFile reads postmaster.pid. Line 1 contains the PID and line 8 the status (since PostgreSQL 10; see src/include/utils/pidfile.h in
// its source). If lines are missing, the server is not ready.
func readPIDFile(pgdata string) (pidFile, error) {
	text, err := os.ReadFile(filepath.Join(pgdata, "postmaster.pid"))
	if err != nil {
		return pidFile{}, err
	}
	lines := strings.Split(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil || pid <= 1 {
		return pidFile{}, fmt.Errorf("read %s/postmaster.pid: no process id in %q", pgdata, lines[0])
	}
	return pidFile{pid: pid, ready: len(lines) > 7 && strings.TrimSpace(lines[7]) == "ready"}, nil
}
