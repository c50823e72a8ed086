package overlay

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/matryer/is"
)

const list = `# Bugs.

one adds two
a/a.go
- return 1
+ return 2 - 1 +
+ 	1
- const unused = 1
b.go
# a comment
- var b int
+ var b = 7
= ./a ./b TestB TestC
^ I3 I4
! it is an example
`

func TestOverlayBlockParts(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	bugs, err := Parse(list)
	is.NoErr(err)
	is.Equal(bugs, []Bug{{
		Name:  "one adds two",
		Edits: []Edit{{"a/a.go", "return 1", "return 2 - 1 +\n\t1"}, {"a/a.go", "const unused = 1", ""}, {"b.go", "var b int", "var b = 7"}},
		Tests: [][]string{{"./a"}, {"./b", "-run", "^(TestB|TestC)$"}}, Invariants: []string{"I3", "I4"}, Harmless: "it is an example",
	}})
}

func TestIncompleteOverlayBlock(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"name", "name\na.go\n= ./a", "name\n- old\n+ new\n= ./a", "name\na.go\n- old\n+ new", "name\na.go\n+ new\n= ./a"} {
		_, err := Parse(text)
		if err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

func TestBugPlantedInCopies(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	root, dir := t.TempDir(), t.TempDir()
	write := func(name, text string) {
		t.Helper()
		is.NoErr(os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		is.NoErr(os.WriteFile(filepath.Join(root, name), []byte(text), 0o600))
	}
	write("a/a.go", "return 1\nconst unused = 1\n")
	write("b.go", "var b int\n")
	bugs, err := Parse(list)
	is.NoErr(err)
	overlay, err := bugs[0].Plant(root, dir)
	is.NoErr(err)
	raw, err := os.ReadFile(overlay)
	is.NoErr(err)
	is.True(strings.Contains(string(raw), filepath.Join(root, "a/a.go")))
	planted, err := os.ReadFile(filepath.Join(dir, "a_a.go"))
	is.NoErr(err)
	is.Equal(string(planted), "return 2 - 1 +\n\t1\n\n")

	write("b.go", "var b int\nvar b int\n")
	_, err = bugs[0].Plant(root, dir)
	is.True(err != nil && strings.Contains(err.Error(), "2 times")) // the text is ambiguous
	write("b.go", "")
	_, err = bugs[0].Plant(root, dir)
	is.True(err != nil && strings.Contains(err.Error(), "0 times")) // the text no longer occurs
}
