package handlers

import (
	"bufio"
	"bytes"
	"embed"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/trapeze-run/trapeze/runner"
)

// maxLine is the maximum length of a line in bytes. It bounds the memory needed to read a file.
const maxLine = 1 << 20

// table reads a CSV file with a header row, line by line. Each row is one line, so an unclosed quote affects only its own row. A table is
// not safe for concurrent use.
type table struct {
	name    string
	file    fs.File
	size    int64
	changed time.Time // modification time
	lines   *bufio.Scanner
	line    int64          // line number of the current row; the header is line 1
	columns map[string]int // column indexes by name
	width   int
	text    strings.Reader
	buffer  *bufio.Reader // reads text; reused for every line
	row     []string
}

// openTable opens a file and reads its header, which must contain the given columns in any order. Its errors are permanent, because a retry
// would read the same file. The caller must close the table.
func (p *pipeline) openTable(name string, columns ...string) (*table, error) {
	f, err := p.openFile(name)
	if err != nil {
		return nil, runner.Permanent(err)
	}
	t := &table{name: name, file: f, lines: bufio.NewScanner(f), columns: map[string]int{}}
	t.buffer = bufio.NewReader(&t.text)
	t.lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	if info, err := f.Stat(); err == nil {
		t.size, t.changed = info.Size(), info.ModTime()
	}
	if err := t.header(columns); err != nil {
		t.Close()
		return nil, runner.Permanent(err)
	}
	return t, nil
}

func (t *table) Close() { _ = t.file.Close() }

func (t *table) header(want []string) error {
	err := t.next()
	bad, isBad := errors.AsType[*badRow](err)
	switch {
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%s is empty: its first line must name the columns %s", t.name, strings.Join(want, ", "))
	case isBad:
		return fmt.Errorf("%s: the first line must name the columns %s: %s", t.name, strings.Join(want, ", "), bad.Reason)
	case err != nil:
		return err
	}
	for i, column := range t.row {
		t.columns[strings.ToLower(strings.TrimSpace(strings.TrimPrefix(column, "\ufeff")))] = i
	}
	t.width = len(t.row)
	var missing []string
	for _, column := range want {
		if _, ok := t.columns[column]; !ok {
			missing = append(missing, column)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s has no column %s: name the columns in its first line, separated by commas; required are %s",
			t.name, strings.Join(missing, ", "), strings.Join(want, ", "))
	}
	return nil
}

// badRow describes an unusable row and the reason. A bad row does not affect later rows.
type badRow struct {
	Line   int64  `json:"line"`
	Reason string `json:"reason"`
}

func (b *badRow) Error() string { return fmt.Sprintf("line %d: %s", b.Line, b.Reason) }

func (t *table) bad(format string, args ...any) error {
	return &badRow{Line: t.line, Reason: fmt.Sprintf(format, args...)}
}

// next reads the next row that is not blank. It returns io.EOF at the end, a *badRow for a row to skip, and any other error if the rest of
// the file cannot be read.
func (t *table) next() error {
	for t.lines.Scan() {
		t.line++
		line := t.lines.Text()
		if strings.TrimSpace(line) == "" {
			continue
		}
		if !utf8.ValidString(line) || strings.ContainsRune(line, 0) {
			return t.bad("holds bytes that are not valid UTF-8")
		}
		t.text.Reset(line)
		t.buffer.Reset(&t.text)
		row, err := csv.NewReader(t.buffer).Read()
		if parse, ok := errors.AsType[*csv.ParseError](err); ok {
			return t.bad("%s", parse.Err)
		}
		if err != nil {
			return fmt.Errorf("read %s, line %d: %w", t.name, t.line, err)
		}
		if t.width > 0 && len(row) != t.width {
			return t.bad("%d fields, the header has %d", len(row), t.width)
		}
		t.row = row
		return nil
	}
	err := t.lines.Err()
	switch {
	case errors.Is(err, bufio.ErrTooLong):
		return runner.Permanent(fmt.Errorf("%s, line %d is longer than %d bytes: is it a CSV file?", t.name, t.line+1, maxLine))
	case err != nil:
		return fmt.Errorf("read %s after line %d: %w", t.name, t.line, err)
	}
	return io.EOF
}

// get returns a field of the current row, without surrounding white space.
func (t *table) get(column string) string { return strings.TrimSpace(t.row[t.columns[column]]) }

// skip reads past all lines up to and including the given one.
func (t *table) skip(line int64) {
	for t.line < line && t.lines.Scan() {
		t.line++
	}
}

// countLines returns the number of lines in a file, which is the total for progress.
func (p *pipeline) countLines(name string) (int64, error) {
	f, err := p.openFile(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var (
		n    int64
		last byte = '\n'
		part      = make([]byte, 64<<10)
	)
	for {
		read, err := f.Read(part)
		if read > 0 {
			text := part[:read]
			n += int64(bytes.Count(text, []byte{'\n'}))
			last = text[len(text)-1]
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, fmt.Errorf("count the lines of %s: %w", name, err)
		}
	}
	if last != '\n' {
		n++
	}
	return n, nil
}

// Names of the embedded sample files, which are accepted wherever a file path is.
const (
	SampleFlights  = samplePrefix + "flights.csv"      // 20,000 flights
	SampleAirports = samplePrefix + "airports.csv"     // 3,376 airports
	SampleFactors  = samplePrefix + "factors_2024.csv" // three distance bands
)

const samplePrefix = "sample:"

//go:embed testdata/flights.csv testdata/airports.csv testdata/factors_2024.csv
var samples embed.FS

// openFile opens the file with the given path, or an embedded sample file.
func (p *pipeline) openFile(name string) (fs.File, error) {
	if sample, ok := strings.CutPrefix(name, samplePrefix); ok {
		f, err := samples.Open("testdata/" + sample)
		if err != nil {
			return nil, fmt.Errorf("unknown sample %q: want %s, %s or %s", name, SampleFlights, SampleAirports, SampleFactors)
		}
		return f, nil
	}
	var (
		f   fs.File
		err error
	)
	if p.Dir != "" {
		f, err = os.OpenInRoot(p.Dir, name)
	} else {
		f, err = os.Open(name)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: give the path of a CSV file that every pod can read", err)
	}
	if info, err := f.Stat(); err == nil && !info.Mode().IsRegular() {
		_ = f.Close()
		return nil, fmt.Errorf("%s is not a regular file: give the path of a CSV file", name)
	}
	return f, nil
}
