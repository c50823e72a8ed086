package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestEveryGuaranteeNamesTestsAndStatementsThatExist keeps docs/guarantees.md and docs/testing.md true.
func TestEveryGuaranteeNamesTestsAndStatementsThatExist(t *testing.T) {
	t.Parallel()
	var code strings.Builder
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile(path)
		code.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	guarantees := read(t, "../../docs/guarantees.md")
	seen := 0
	for _, name := range spans(guarantees) {
		var declared *regexp.Regexp
		switch {
		case strings.HasPrefix(name, "Test"):
			declared = regexp.MustCompile(`func ` + name + `\(t \*testing\.T\)`)
		case strings.HasSuffix(name, "SQL"):
			declared = regexp.MustCompile(`\b` + name + `\s+= `)
		default:
			continue
		}
		seen++
		if !declared.MatchString(code.String()) {
			t.Errorf("docs/guarantees.md names %s, which does not exist", name)
		}
	}
	if seen < 60 {
		t.Errorf("only %d names found in docs/guarantees.md: is the pattern still right?", seen)
	}
	for line := range strings.Lines(guarantees) {
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| promise") && !strings.Contains(line, "`Test") {
			t.Errorf("a promise without a test: %s", line)
		}
	}
}
