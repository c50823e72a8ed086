// Package overlay plants bugs in a single build of the program. It does not change the source files: the go command reads modified copies
// instead (go build -overlay).
package overlay

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Bug is a bug that is planted by replacing text in source files.
type Bug struct {
	Name       string
	Edits      []Edit
	Tests      [][]string // arguments for the go test runs, at least one of which must fail unless the bug is harmless
	Invariants []string   // the torture test must report at least one of these as broken
	Harmless   string     // why no test can fail because of the bug
}

// Edit replaces text that occurs exactly once in a file.
type Edit struct{ File, Old, New string }

// Parse reads blocks separated by empty lines. A block contains one item per line: the bug's name, a file, the lines of the old text ("-
// "), the lines of the new text ("+ "), and the packages to test, optionally with test names ("= "). The first edit may be followed by more
// edits to the same file or to other files. A block may also contain torture invariants ("^ "), the reason why the bug is harmless ("! ")
// and comments ("# ").
func Parse(text string) (bugs []Bug, err error) {
	for block := range strings.SplitSeq(text, "\n\n") {
		b := parseBlock(block)
		if b.Name == "" {
			continue // the block contains only comments
		}
		complete := len(b.Edits) > 0 && len(b.Tests) > 0
		for _, e := range b.Edits {
			complete = complete && e.File != "" && e.Old != ""
		}
		if !complete {
			return nil, fmt.Errorf("bug %q: want a file, a text to replace and packages to test", b.Name)
		}
		bugs = append(bugs, b)
	}
	return bugs, nil
}

func parseBlock(block string) (b Bug) {
	var file, before string
	for line := range strings.SplitSeq(strings.Trim(block, "\n"), "\n") {
		mark, rest, _ := strings.Cut(line, " ")
		switch {
		case mark == "#":
			continue
		case mark == "-" && before != "-":
			b.Edits = append(b.Edits, Edit{File: file, Old: rest})
		case mark == "-":
			b.Edits[len(b.Edits)-1].Old += "\n" + rest
		case mark == "+" && before == "-":
			b.Edits[len(b.Edits)-1].New = rest
		case mark == "+" && len(b.Edits) > 0:
			b.Edits[len(b.Edits)-1].New += "\n" + rest
		case mark == "=":
			b.Tests = append(b.Tests, testArguments(strings.Fields(rest))...)
		case mark == "^":
			b.Invariants = strings.Fields(rest)
		case mark == "!":
			b.Harmless = rest
		case b.Name == "":
			b.Name = line
		default:
			file = line
		}
		before = mark
	}
	return b
}

// testArguments returns the go test arguments for each package, restricted to the test names that follow the package.
func testArguments(words []string) (runs [][]string) {
	for i := 0; i < len(words); {
		run := []string{words[i]}
		var names []string
		for i++; i < len(words) && strings.HasPrefix(words[i], "Test"); i++ {
			names = append(names, words[i])
		}
		if len(names) > 0 {
			run = append(run, "-run", "^("+strings.Join(names, "|")+")$")
		}
		runs = append(runs, run)
	}
	return runs
}

// Plant writes the modified copies of files below root to dir, and returns the path of the file for go build -overlay. It fails unless the
// old text occurs exactly once, so that a change to the code cannot silently make a bug harmless.
func (b Bug) Plant(root, dir string) (overlay string, err error) {
	root, err = filepath.Abs(root)
	if err != nil {
		return "", err
	}
	code, replace := map[string]string{}, map[string]string{}
	for _, e := range b.Edits {
		if _, read := code[e.File]; !read {
			text, err := os.ReadFile(filepath.Join(root, e.File))
			if err != nil {
				return "", fmt.Errorf("bug %q: %w", b.Name, err)
			}
			code[e.File] = string(text)
		}
		if n := strings.Count(code[e.File], e.Old); n != 1 {
			return "", fmt.Errorf("bug %q: %s contains %q %d times, want once", b.Name, e.File, e.Old, n)
		}
		code[e.File] = strings.Replace(code[e.File], e.Old, e.New, 1)
	}
	for file, text := range code {
		planted := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(planted, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root, file)] = planted
	}
	raw, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, raw, 0o600)
}
