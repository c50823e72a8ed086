package ui

import (
	"encoding/json"
	"strings"
)

// fold is a line of formatted JSON. If the line opens an object or array, fold also holds the lines inside it and the closing line.
type fold struct {
	Text  string
	Lines []fold
	End   string
	Open  bool // initially unfolded
}

// Tail returns the closing line without its indentation.
func (f fold) Tail() string { return strings.TrimSpace(f.End) }

// Long values are initially unfolded only at the outermost level. Levels below deepest cannot be folded.
const (
	shortJSON = 200 // lines
	deepest   = 50
)

// folds formats JSON as foldable lines.
func folds(raw json.RawMessage) []fold {
	lines := strings.Split(pretty(raw), "\n")
	return foldLines(lines, 0, len(lines) <= shortJSON)
}

func foldLines(lines []string, depth int, open bool) (list []fold) {
	for i := 0; i < len(lines); {
		one := fold{Text: lines[i], Open: open || depth == 0}
		i++
		if depth < deepest && (strings.HasSuffix(one.Text, "{") || strings.HasSuffix(one.Text, "[")) {
			end := i
			for end < len(lines) && indent(lines[end]) > indent(one.Text) {
				end++
			}
			one.Lines = foldLines(lines[i:end], depth+1, open)
			if i = end; end < len(lines) {
				one.End, i = lines[end], end+1
			}
		}
		list = append(list, one)
	}
	return list
}

func indent(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }
