// Command planted plants bugs in the code, one at a time, and expects the tests to detect each of them. It does not change the source files
// (see package overlay). It exits with code 1 if a bug survives without a stated reason, or if a text to replace does not occur exactly
// once.
//
//	planted [-only text] [-timeout 15m] [-check] bugs.txt ...
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/tools/torture/overlay"
)

func main() {
	only := flag.String("only", "", "plant only the bugs whose name or file contains this text")
	check := flag.Bool("check", false, "only check that each bug can be planted and compiles; run no tests")
	tags := flag.String("tags", "", "further build tags for the tests")
	timeout := flag.Duration("timeout", 15*time.Minute, "limit for the tests of one package")
	flag.Parse()
	// A server started by internal/pgtest/with was migrated without the bug, so a bug in a migration would have no effect. Without such a
	// server, each test process starts a new one.
	_ = os.Unsetenv(pgtest.ServerVar)
	if err := run(flag.Args(), *only, *tags, *timeout, *check); err != nil {
		fmt.Fprintln(os.Stderr, "planted:", err)
		os.Exit(1)
	}
}

func run(lists []string, only, tags string, timeout time.Duration, check bool) error {
	var bugs []overlay.Bug
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			return err
		}
		more, err := overlay.Parse(string(text))
		if err != nil {
			return err
		}
		bugs = append(bugs, more...)
	}
	dir, err := os.MkdirTemp("", "planted-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var caught, harmless, survived int
	for _, b := range bugs {
		if !strings.Contains(b.Name+" "+files(b), only) {
			continue
		}
		planted, err := b.Plant(".", dir)
		if err != nil {
			return err
		}
		if check {
			if out, err := exec.Command("go", append([]string{"build", "-overlay", planted}, packages(b)...)...).CombinedOutput(); err != nil {
				return fmt.Errorf("bug %q does not compile:\n%s", b.Name, out)
			}
			fmt.Println("can be planted:", b.Name)
			continue
		}
		began := time.Now()
		by, err := find(b, planted, tags, timeout)
		took := time.Since(began).Round(time.Second)
		switch {
		case err != nil:
			return err
		case by != "":
			caught++
			fmt.Printf("caught    %-70s %s (%s)\n", b.Name, by, took)
		case b.Harmless != "":
			harmless++
			fmt.Printf("harmless  %-70s %s\n", b.Name, b.Harmless)
		default:
			survived++
			fmt.Printf("SURVIVED  %-70s %s (%s)\n", b.Name, files(b), took)
		}
	}
	if check {
		return nil
	}
	fmt.Printf("%d bugs caught, %d harmless, %d survived\n", caught, harmless, survived)
	if survived > 0 || caught == 0 {
		return fmt.Errorf("%d bugs survived", survived)
	}
	return nil
}

func files(b overlay.Bug) string {
	var names []string
	for _, e := range b.Edits {
		names = append(names, e.File)
	}
	return strings.Join(names, " ")
}

// packages returns the folders of the files that contain the bug.
func packages(b overlay.Bug) []string {
	var folders []string
	for _, e := range b.Edits {
		folders = append(folders, "./"+path.Dir(e.File))
	}
	slices.Sort(folders)
	return slices.Compact(folders)
}

var failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// find runs the tests until one fails and returns its name, or an empty string if none fails. It runs the tests of make test first, and the
// long tests only if none of those fails. It returns an error if the code with the bug does not compile or none of the tests exists.
func find(b overlay.Bug, planted, further string, timeout time.Duration) (by string, err error) {
	ran := false
	for _, tags := range []string{"", "long"} {
		for _, args := range b.Tests {
			args = append([]string{"test", "-overlay", planted, "-failfast", "-tags", tags + "," + further, "-timeout", timeout.String()}, args...)
			out, err := exec.Command("go", args...).CombinedOutput()
			ran = ran || !strings.Contains(string(out), "[no tests to run]")
			if err == nil {
				continue
			}
			if strings.Contains(string(out), "[build failed]") {
				return "", fmt.Errorf("bug %q does not compile:\n%s", b.Name, out)
			}
			if m := failed.FindSubmatch(out); m != nil {
				return strings.TrimSpace(string(m[1]) + " " + tags), nil
			}
			return "the tests ended: " + lastLine(string(out)), nil
		}
	}
	if !ran {
		return "", fmt.Errorf("bug %q: the tests that should find it do not exist: %v", b.Name, b.Tests)
	}
	return "", nil
}

func lastLine(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[max(0, len(lines)-2)]
}
