//go:build ha && linux

package ha

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// binary is the path of the program under test. scratch is this test run's folder, which is removed at the end.
var binary, scratch string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	var err error
	if scratch, err = os.MkdirTemp("", "trapeze-ha-"); err != nil {
		return broken(err)
	}
	defer func() {
		if os.Getenv("HA_KEEP") == "" { // otherwise, keep the folder, which contains all logs
			_ = os.RemoveAll(scratch)
		}
	}()
	if err := os.Chmod(scratch, 0o755); err != nil { // if this process runs as root, the servers run as an unprivileged user, who needs access
		return broken(err)
	}
	stopWatching, err := watch(scratch)
	if err != nil {
		return broken(err)
	}
	defer stopWatching()
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		os.Exit(130) // the kernel kills this process's children, and the watcher kills the servers that Patroni started
	}()

	binary = filepath.Join(scratch, "trapeze")
	build := exec.Command("go", "build", "-o", binary, "./cmd/trapeze")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		return broken(fmt.Errorf("build the program under test: %w\n%s", err, out))
	}
	code = m.Run()
	fmt.Printf("\n%s\n", strings.Join(append([]string{reportHead}, reported...), "\n"))
	for _, one := range skipped {
		fmt.Println(one)
	}
	if len(reported) == 0 {
		return broken(fmt.Errorf("no scenario ran"))
	}
	return code
}

func broken(err error) int {
	fmt.Fprintln(os.Stderr, "ha:", err)
	return 1
}

// skipped lists the scenarios that did not run, each with the reason.
var skipped []string

// need skips the test unless all of the programs are installed.
func need(t *testing.T, programs ...string) {
	t.Helper()
	packages := map[string]string{"etcd": "etcd-server"}
	for _, program := range programs {
		if _, err := find(program); err != nil {
			name := program
			if packages[program] != "" {
				name = packages[program]
			}
			reason := fmt.Sprintf("no %s on this machine: install the Debian package %s", program, name)
			skipped = append(skipped, "SKIP  "+t.Name()+": "+reason)
			t.Skip(reason)
		}
	}
}

// find returns a program's path. It also searches the system directories that only root has in its PATH.
func find(program string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		for _, dir := range []string{"/usr/sbin", "/sbin"} {
			if path, err := exec.LookPath(filepath.Join(dir, program)); err == nil {
				return path, nil
			}
		}
	}
	return path, err
}
