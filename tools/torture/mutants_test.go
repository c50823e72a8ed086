package torture

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/tools/torture/checker"
	"github.com/trapeze-run/trapeze/tools/torture/history"
	"github.com/trapeze-run/trapeze/tools/torture/overlay"
)

func TestPlantingMutantsAndBugs(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	read := func(file string) []overlay.Bug {
		text, err := os.ReadFile(file)
		is.NoErr(err)
		bugs, err := overlay.Parse(string(text))
		is.NoErr(err)
		return bugs
	}
	bugs := read("../planted/bugs.txt")
	for _, m := range Mutants() {
		bugs = append(bugs, m.Bug)
	}
	for root, bugs := range map[string][]overlay.Bug{"../..": bugs, "../../temporal": read("../../temporal/planted.txt")} {
		for _, b := range bugs {
			if _, err := b.Plant(root, t.TempDir()); err != nil {
				t.Errorf("correct its text in mutants.txt, bugs.txt or temporal/planted.txt: %v", err)
			}
		}
	}
}

func TestMutantDescriptions(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	known := map[string]bool{}
	for _, f := range checker.Check(&history.Run{}) {
		known[f.Invariant] = true
	}
	for _, m := range Mutants() {
		is.True(regexp.MustCompile(`^[a-z_]+$`).MatchString(m.Name))
		is.True(m.Mistake != "")
		is.True(len(m.Invariants) > 0)
		for _, invariant := range m.Invariants {
			is.True(known[invariant])
		}
	}
	names := MutantNames()
	is.Equal(len(slices.Compact(slices.Sorted(slices.Values(names)))), len(names)) // names are unique
}

// The page that explains the mutants must contain a row for each mutant that names the mutant's tests from mutants.txt.
func TestMutantsOnDocumentationPage(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	page, err := os.ReadFile("../../docs/testing.md")
	is.NoErr(err)
	for _, m := range Mutants() {
		row := regexp.MustCompile("(?m)^\\| `" + m.Name + "` \\| " + regexp.QuoteMeta(m.Mistake) + " \\|.*$").FindString(string(page))
		if row == "" {
			t.Errorf("docs/testing.md has no row for %s with the mistake %q", m.Name, m.Mistake)
		}
		for _, run := range m.Tests {
			is.True(len(run) == 3) // a list of test names, because running a whole package would take too long
			folder, tests := run[0], regexp.MustCompile(`Test[A-Za-z]+`).FindAllString(run[2], -1)
			for _, test := range tests {
				if !strings.Contains(row, "`"+test+"`") || !declares(t, "../../"+folder, test) {
					t.Errorf("%s: %s is not in its row of docs/testing.md, or not in %s", m.Name, test, folder)
				}
			}
		}
	}
}

// declares reports whether the tests in a folder include one with the given name.
func declares(t *testing.T, folder, test string) bool {
	t.Helper()
	files, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		code, err := os.ReadFile(folder + "/" + f.Name())
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(code), "\nfunc "+test+"(") {
			return true
		}
	}
	return false
}
