package runner_test

import (
	"os"
	"strings"
	"testing"

	"github.com/matryer/is"
)

func TestTheReadmeShowsTheExample(t *testing.T) {
	is := is.New(t)
	source, err := os.ReadFile("example_embed_test.go")
	is.NoErr(err)
	readme, err := os.ReadFile("../README.md")
	is.NoErr(err)
	_, body, ok := strings.Cut(string(source), "\t// readme:begin\n")
	is.True(ok) // the example marks where the README's part begins
	body, _, ok = strings.Cut(body, "\t// readme:end\n")
	is.True(ok) // and where it ends
	var lines []string
	for line := range strings.Lines(body) {
		lines = append(lines, strings.TrimPrefix(line, "\t"))
	}
	is.True(strings.Contains(string(readme), strings.Join(lines, ""))) // the README shows code that compiles and runs
}
