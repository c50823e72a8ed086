package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/trapeze-run/trapeze/internal/cli/program"
)

// TestCommandsInDocuments checks every `trapeze …` command that occurs as code in a document.
func TestCommandsInDocuments(t *testing.T) {
	t.Parallel()
	code := regexp.MustCompile("(?s)```.*?```|`[^`]+`")
	typed := regexp.MustCompile(`(?m)(?:^|[\x60(;|/] ?)trapeze ([a-z][^\x60|#;\n]*)`)
	flag := regexp.MustCompile(`--([a-z-]+)`)
	seen := 0
	for _, file := range pages(t) {
		if filepath.Base(file) == "dependencies.md" { // mentions folders of the repository, such as cmd/trapeze
			continue
		}
		for _, part := range code.FindAllString(read(t, file), -1) {
			for _, found := range typed.FindAllStringSubmatch(part, -1) {
				seen++
				root := program.Command("")
				root.InitDefaultCompletionCmd("completion")
				c, args, err := root.Find(strings.Fields(found[1]))
				if err != nil || !c.HasParent() || c.HasSubCommands() && c.Name() != "completion" && c.Name() != "demo" && c.Name() != "pipeline" && len(args) > 0 && !strings.HasPrefix(args[0], "-") {
					t.Errorf("%s: no command %q", file, found[0])
					continue
				}
				for _, f := range flag.FindAllStringSubmatch(found[1], -1) {
					if c.Flag(f[1]) == nil && c.InheritedFlags().Lookup(f[1]) == nil {
						t.Errorf("%s: %s has no flag --%s", file, c.CommandPath(), f[1])
					}
				}
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d commands found in the documents: is the pattern still right?", seen)
	}
}

var codeSpan = regexp.MustCompile("`([^`]+)`")

// spans returns the code spans in text.
func spans(text string) (list []string) {
	for _, found := range codeSpan.FindAllStringSubmatch(text, -1) {
		list = append(list, found[1])
	}
	return list
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// section returns the section of the reference below a heading.
func section(t *testing.T, heading string) string {
	t.Helper()
	_, below, ok := strings.Cut(read(t, referenceFile), "\n"+heading+"\n")
	if !ok {
		t.Fatalf("the reference has no heading %q", heading)
	}
	if level := strings.Index(heading, " "); level == 2 {
		below, _, _ = strings.Cut(below, "\n## ")
	} else {
		below, _, _ = strings.Cut(below, "\n##")
	}
	return below
}

// table returns the rows of all tables in a section whose first column has the given header.
func table(t *testing.T, heading, first string) (rows [][]string) {
	t.Helper()
	tables := strings.Split(section(t, heading), "\n| "+first+" |")
	if len(tables) == 1 {
		t.Fatalf("%q has no table of a %s", heading, first)
	}
	for _, one := range tables[1:] {
		for _, line := range strings.Split(one, "\n")[2:] { // skip the rest of the header and the delimiter row
			if !strings.HasPrefix(line, "|") {
				break
			}
			cells := strings.Split(strings.Trim(line, "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows = append(rows, cells)
		}
	}
	return rows
}

// names returns the code spans in the first column of a table.
func names(t *testing.T, heading, first string) (list []string) {
	t.Helper()
	for _, row := range table(t, heading, first) {
		list = append(list, spans(row[0])...)
	}
	return list
}

// literals returns the texts matched by the pattern's group in this module's non-test files.
func literals(t *testing.T, glob, pattern string) (list []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", glob))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files %s: %v", glob, err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, found := range regexp.MustCompile(pattern).FindAllStringSubmatch(read(t, file), -1) {
			list = append(list, found[1])
		}
	}
	return list
}

// same fails the test unless the reference lists exactly the names in the code, each once and in any order.
func same(t *testing.T, what string, reference, code []string) {
	t.Helper()
	reference, code = slices.Sorted(slices.Values(reference)), slices.Compact(slices.Sorted(slices.Values(code)))
	for _, name := range code {
		if !slices.Contains(reference, name) {
			t.Errorf("%s: the reference lacks %s", what, name)
		}
	}
	for i, name := range reference {
		if !slices.Contains(code, name) || i > 0 && reference[i-1] == name {
			t.Errorf("%s: the reference has %s, which does not exist or is named twice", what, name)
		}
	}
}
