package main

import (
	"go/build/constraint"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestTestNamesInGuarantees checks the names of tests and statements in docs/guarantees.md and docs/testing.md.
func TestTestNamesInGuarantees(t *testing.T) {
	t.Parallel()
	declaration := regexp.MustCompile(`func (Test\w+)\(t \*testing\.T\)|\b(\w+SQL)\s+= `)
	declared := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, found := range declaration.FindAllStringSubmatch(string(text), -1) {
			declared[found[1]+found[2]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	guarantees := read(t, "../../docs/guarantees.md")
	seen := 0
	for _, name := range spans(guarantees) {
		if !strings.HasPrefix(name, "Test") && !strings.HasSuffix(name, "SQL") {
			continue
		}
		seen++
		if !declared[name] {
			t.Errorf("docs/guarantees.md names %s, which does not exist", name)
		}
	}
	if seen < 60 {
		t.Errorf("only %d names found in docs/guarantees.md: is the pattern still right?", seen)
	}
	for line := range strings.Lines(guarantees) {
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| promise") && !strings.Contains(line, "`Test") {
			t.Errorf("a guarantee without a test: %s", line)
		}
	}
}

// TestGuaranteesMarkLongTests checks the † marks in docs/guarantees.md. A test must be marked if and only if its build tags
// keep .ci/run from running it, and .ci/long must run every marked test.
func TestGuaranteesMarkLongTests(t *testing.T) {
	t.Parallel()
	fast, long := read(t, "../../.ci/run"), read(t, "../../.ci/long")
	for _, step := range []string{"test", "tools"} {
		if !strings.Contains(fast, "\nstep_of "+step+" make "+step) {
			t.Errorf(".ci/run does not run make %s", step)
		}
	}
	// The build tags of each leg of .ci/long determine which tests it adds.
	legs := map[string][]string{"fault": variable(t, "TAGS"), "ha": {"ha"}}
	for leg := range legs {
		if !strings.Contains(long, "leg_"+leg+"() { make "+leg+"; }") {
			t.Errorf(".ci/long does not run make %s", leg)
		}
	}
	constraints := constraintsOfTests(t)
	attacks := variable(t, "ATTACKS")
	for _, name := range append(variable(t, "LONG_RACE"), attacks...) {
		if _, ok := constraints[name]; !ok {
			t.Errorf("the Makefile names %s, which does not exist", name)
		}
	}
	for name := range constraints {
		if strings.HasPrefix(name, "TestAttack") && !slices.Contains(attacks, name) {
			t.Errorf("make attack does not run %s", name)
		}
	}
	marked := 0
	for _, found := range regexp.MustCompile("`(Test\\w+)`( †)?").FindAllStringSubmatch(read(t, "../../docs/guarantees.md"), -1) {
		name, mark := found[1], found[2] != ""
		expression, ok := constraints[name]
		if !ok {
			continue // reported by TestTestNamesInGuarantees
		}
		inFast := isBuilt(expression, nil)
		if mark {
			marked++
		}
		switch {
		case inFast && mark:
			t.Errorf("docs/guarantees.md: %s runs in .ci/run, remove its †", name)
		case !inFast && !mark:
			t.Errorf("docs/guarantees.md: %s does not run in .ci/run, put a † after it", name)
		}
		inLong := inFast
		for _, tags := range legs {
			inLong = inLong || isBuilt(expression, tags)
		}
		if !inLong {
			t.Errorf("docs/guarantees.md: no leg runs %s, which has the build constraint %s", name, expression)
		}
	}
	if marked == 0 {
		t.Error("docs/guarantees.md has no test with a †: is the pattern still right?")
	}
}

// constraintsOfTests returns the build constraint of each test's file, or nil if the file has none.
func constraintsOfTests(t *testing.T) map[string]constraint.Expr {
	t.Helper()
	all := map[string]constraint.Expr{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text := read(t, path)
		var expression constraint.Expr
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); constraint.IsGoBuild(line) {
				if expression, err = constraint.Parse(line); err != nil {
					return err
				}
			} else if strings.HasPrefix(line, "package ") {
				break
			}
		}
		for _, found := range declared.FindAllStringSubmatch(text, -1) {
			all[found[1]] = expression
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// isBuilt reports whether a file with the given build constraint is part of a build with these tags on this system.
func isBuilt(expression constraint.Expr, tags []string) bool {
	return expression == nil || expression.Eval(func(tag string) bool {
		return tag == runtime.GOOS || tag == "unix" && runtime.GOOS != "windows" || slices.Contains(tags, tag)
	})
}

// variable returns the words in the value of a Makefile variable.
func variable(t *testing.T, name string) []string {
	t.Helper()
	makefile := strings.ReplaceAll(read(t, "../../Makefile"), "\\\n", "")
	found := regexp.MustCompile(`(?m)^` + name + `\s*:= (.+)$`).FindStringSubmatch(makefile)
	if found == nil {
		t.Fatalf("the Makefile has no variable %s", name)
	}
	return strings.Fields(found[1])
}
