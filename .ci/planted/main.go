// Command planted plants bugs in the code, one at a time, and expects the tests to notice each. The code itself is not touched: the go
// command reads the file with the bug in place of the real one (go build -overlay). It exits with 1 when a bug survives that has no reason
// to, or when a text is not found exactly once, so that no bug becomes harmless in silence when its code changes.
//
//	planted [-only text] [-timeout 15m] [-check] bugs.txt
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// A bug is a text of one file and its replacement.
type bug struct {
	name, file, old, new, reason string
	packages                     []string
}

func main() {
	only := flag.String("only", "", "plant only the bugs whose name or file contains this text")
	check := flag.Bool("check", false, "only check that each bug can be planted; run no tests")
	timeout := flag.Duration("timeout", 15*time.Minute, "limit for the tests of one package")
	flag.Parse()
	if err := run(flag.Arg(0), *only, *timeout, *check); err != nil {
		fmt.Fprintln(os.Stderr, "planted:", err)
		os.Exit(1)
	}
}

func run(list, only string, timeout time.Duration, check bool) error {
	text, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	bugs, err := parse(string(text))
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "planted-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var caught, excused, survived int
	for _, b := range bugs {
		if !strings.Contains(b.name+b.file, only) {
			continue
		}
		overlay, err := b.plant(dir)
		if err != nil {
			return err
		}
		if check {
			fmt.Println("can be planted:", b.name)
			continue
		}
		began := time.Now()
		by, err := b.find(overlay, timeout)
		took := time.Since(began).Round(time.Second)
		switch {
		case err != nil:
			return err
		case by != "":
			caught++
			fmt.Printf("caught    %-70s %s (%s)\n", b.name, by, took)
		case b.reason != "":
			excused++
			fmt.Printf("harmless  %-70s %s\n", b.name, b.reason)
		default:
			survived++
			fmt.Printf("SURVIVED  %-70s %s (%s)\n", b.name, b.file, took)
		}
	}
	if check {
		return nil
	}
	fmt.Printf("%d bugs caught, %d harmless, %d survived\n", caught, excused, survived)
	if survived > 0 || caught == 0 {
		return fmt.Errorf("%d bugs survived", survived)
	}
	return nil
}

// parse reads blocks that are separated by empty lines.
func parse(text string) (bugs []bug, err error) {
	for block := range strings.SplitSeq(text, "\n\n") {
		var b bug
		var old, planted []string
		for line := range strings.SplitSeq(strings.Trim(block, "\n"), "\n") {
			switch mark, rest, _ := strings.Cut(line, " "); {
			case mark == "#":
			case mark == "-":
				old = append(old, rest)
			case mark == "+":
				planted = append(planted, rest)
			case mark == "=":
				b.packages = strings.Fields(rest)
			case mark == "!":
				b.reason = rest
			case b.name == "":
				b.name = line
			default:
				b.file = line
			}
		}
		if b.name == "" {
			continue // a comment
		}
		if b.old, b.new = strings.Join(old, "\n"), strings.Join(planted, "\n"); b.file == "" || b.old == "" || len(b.packages) == 0 {
			return nil, fmt.Errorf("bug %q: want a file, a text to replace and packages to test", b.name)
		}
		bugs = append(bugs, b)
	}
	return bugs, nil
}

// plant writes the file with the bug and the overlay that puts it in place.
func (b bug) plant(dir string) (overlay string, err error) {
	path, err := filepath.Abs(b.file)
	if err != nil {
		return "", err
	}
	code, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(code), b.old); n != 1 {
		return "", fmt.Errorf("bug %q: its text is %d times in %s, want once", b.name, n, b.file)
	}
	planted := filepath.Join(dir, "planted.go")
	if err := os.WriteFile(planted, []byte(strings.Replace(string(code), b.old, b.new, 1)), 0o600); err != nil {
		return "", err
	}
	raw, err := json.Marshal(map[string]map[string]string{"Replace": {path: planted}})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, raw, 0o600)
}

var failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// find runs the tests until one fails, and returns its name; empty: none did. It is an error when the code with the bug does not compile.
func (b bug) find(overlay string, timeout time.Duration) (by string, err error) {
	for _, pkg := range b.packages {
		out, err := exec.Command("go", "test", "-overlay", overlay, "-failfast", "-timeout", timeout.String(), pkg).CombinedOutput()
		if err == nil {
			continue
		}
		if strings.Contains(string(out), "[build failed]") {
			return "", fmt.Errorf("bug %q does not compile:\n%s", b.name, out)
		}
		if m := failed.FindSubmatch(out); m != nil {
			return string(m[1]), nil
		}
		return "the tests of " + pkg + " ended: " + lastLine(string(out)), nil
	}
	return "", nil
}

func lastLine(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[max(0, len(lines)-2)]
}
