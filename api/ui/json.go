package ui

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/trapeze-run/trapeze/internal/query"
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

// Long values are initially unfolded at the outermost level only. Levels below deepest cannot be folded.
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

// download is a file that the browser saves.
type download struct {
	name string
	body []byte
}

func (f download) write(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Disposition", "attachment; filename="+strconv.Quote(f.name))
	_, _ = w.Write(f.body) // the client may have disconnected
}

// jobValue returns a handler that serves a job's arguments or result as a download. Hidden values are masked, as on the job's page.
func jobValue(of string) func(*dashboard, *page, *http.Request) error {
	return func(d *dashboard, p *page, r *http.Request) error {
		id, err := query.JobID(r.PathValue("id"))
		if err != nil {
			return err
		}
		j, err := d.shownJob(r, p, id)
		if err != nil {
			return err
		}
		value := j.Args
		if of == "result" {
			value = j.Result
		}
		if value == nil {
			value = json.RawMessage("null")
		}
		var body bytes.Buffer
		err = json.Indent(&body, value, "", "  ")
		body.WriteByte('\n')
		p.file = &download{"job-" + strconv.FormatInt(id, 10) + "-" + of + ".json", body.Bytes()}
		return err
	}
}
