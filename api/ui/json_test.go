package ui

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// unfolded returns all lines of a value, including folded ones.
func unfolded(list []fold) (text string) {
	for _, f := range list {
		text += f.Text + "\n" + unfolded(f.Lines)
		if f.End != "" {
			text += f.End + "\n"
		}
	}
	return text
}

func TestFoldedJSONLines(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	for _, raw := range []string{`1`, `"{"`, `{}`, `{"a":[{"b":{}},[],"["],"c":{"d":12345678901234567890}}`, `["{","}"]`, strings.Repeat("[", 200) + strings.Repeat("]", 200),
		`"` + strings.Repeat("x", mostJSON) + `"`, `{"a":["` + strings.Repeat("x", mostJSON) + `"]}`} {
		is.Equal(unfolded(folds(json.RawMessage(raw))), pretty(json.RawMessage(raw))+"\n")
	}
	list := folds(json.RawMessage(`{"a":[1,{"b":2}],"c":3}`))
	is.Equal(len(list), 1)
	is.Equal(list[0].Lines[0].Text, `  "a": [`)
	is.Equal(list[0].Lines[0].End, "  ],")
	is.Equal(len(list[0].Lines[0].Lines), 2)
	is.True(list[0].Lines[0].Open)
	long := folds(json.RawMessage(`[[` + strings.Repeat("1,", shortJSON) + `1]]`))
	is.True(long[0].Open)
	is.True(!long[0].Lines[0].Open) // only the outermost level of a long value is unfolded
}
