package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/mattn/go-runewidth"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// JSON prints a value as JSON on one line.
func JSON(c *cobra.Command, v any) error {
	encoder := json.NewEncoder(c.OutOrStdout())
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

// Progress formats the progress that a job reported.
func Progress(p *job.Progress) string {
	if p == nil {
		return ""
	}
	var parts []string
	switch {
	case p.Done != nil && p.Total != nil && *p.Total > 0:
		parts = append(parts, fmt.Sprintf("%d/%d (%d%%)", *p.Done, *p.Total, *p.Done*100 / *p.Total))
	case p.Done != nil:
		parts = append(parts, fmt.Sprint(*p.Done))
	}
	if p.Message != nil {
		parts = append(parts, text.Short(*p.Message, 60))
	}
	return strings.Join(parts, " ")
}

// Text returns the value of a pointer, or an empty string for nil.
func Text[T ~string](p *T) string {
	if p == nil {
		return ""
	}
	return string(*p)
}

// WantsJSON reports whether the --json flag is set.
func WantsJSON(c *cobra.Command) bool {
	json, _ := c.Flags().GetBool("json")
	return json
}

// mostLines limits the number of lines that [Fact] prints, because a stack trace may have hundreds.
const mostLines = 40

// Fact prints a name and a value, wrapped at 100 columns. It prints nothing if the value is empty.
func Fact(b *strings.Builder, colours Ink, name, value string) {
	const indent = 15
	if value == "" || value == "null" {
		return
	}
	lines := strings.Split(strings.TrimRight(value, "\n"), "\n")
	if more := len(lines) - mostLines; more > 0 {
		lines = append(lines[:mostLines], fmt.Sprintf("… %d more lines: --json has them", more))
	}
	fmt.Fprintf(b, "%s", colours.Colour(faint, fmt.Sprintf("%-*s", indent, name)))
	for i, one := range lines {
		one = strings.TrimRight(one, " \t\r")
		if i > 0 && one != "" {
			fmt.Fprintf(b, "%*s", indent, "")
		}
		b.WriteString(colours.word(Wrap(text.Printable(strings.ReplaceAll(one, "\t", "  ")), 100-indent, strings.Repeat(" ", indent))) + "\n")
	}
}

// Show prints a value as JSON with --json, and otherwise calls print.
func Show(c *cobra.Command, v any, print func() error) error {
	if WantsJSON(c) {
		return JSON(c, v)
	}
	return print()
}

// List prints rows. With --json, it prints one object per line as rows arrive; otherwise, it prints a table with a header.
func List[T any](c *cobra.Command, head string, rows iter.Seq2[T, error], cells func(T) []string) error {
	var table [][]string
	for row, err := range rows {
		if err == nil && WantsJSON(c) {
			err = JSON(c, row)
		}
		if err != nil {
			return err
		}
		table = append(table, cells(row))
	}
	if WantsJSON(c) {
		return nil
	}
	return Table(c, head, table)
}

// Rows returns the rows of a list as a sequence, for [List].
func Rows[T any](list []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, one := range list {
			if !yield(one, nil) {
				return
			}
		}
	}
}

// Done prints a command's result, as an object with --json or else as a line.
func Done(c *cobra.Command, v any, format string, args ...any) error {
	if WantsJSON(c) {
		return JSON(c, v)
	}
	_, err := fmt.Fprintln(c.OutOrStdout(), text.Printable(Named(c, fmt.Sprintf(format, args...))))
	return err
}

// commandName matches a command in a text.
var commandName = regexp.MustCompile(`(?m)(^|[ (;|])trapeze [a-z]+`)

// Named replaces trapeze with the program's name in the commands that occur in text.
func Named(c *cobra.Command, text string) string {
	root := c.Root()
	if root.Name() == "trapeze" {
		return text
	}
	return commandName.ReplaceAllStringFunc(text, func(found string) string {
		before, command, _ := strings.Cut(found, "trapeze ")
		if to, _, err := root.Find([]string{command}); err != nil || to == root {
			return found // such as the schema trapeze
		}
		return before + root.Name() + " " + command
	})
}

// leastColumn is the minimum width of a column in a table that must fit a terminal.
const leastColumn = 6

// Table prints rows of cells below a header. Columns are as wide as their contents, but shrink if necessary to fit the width of a terminal.
// Table modifies rows: it removes control characters, and replaces empty cells with "-".
func Table(c *cobra.Command, head string, rows [][]string) error {
	names := strings.Fields(head)
	for _, cells := range rows {
		for i, cell := range cells {
			if cells[i] = text.Printable(cell); cells[i] == "" {
				cells[i] = "-"
			}
		}
	}
	out := c.OutOrStdout()
	widths := columns(names, rows, widthOf(out))
	var b strings.Builder
	colours := InkFor(out)
	line(&b, names, widths, func(cell string) string { return colours.Colour(faint, cell) })
	for _, cells := range rows {
		line(&b, cells, widths, colours.word)
	}
	_, err := fmt.Fprint(out, b.String())
	return err
}

// columns returns the width of each column. While the table is wider than the terminal, it shrinks the widest column, but none below
// leastColumn. A terminal width of 0 means no limit. The first column never shrinks, because it identifies the row.
func columns(names []string, rows [][]string, terminal int) []int {
	widths := make([]int, len(names))
	total := 2 * (len(names) - 1)
	for i, name := range names {
		widths[i] = runewidth.StringWidth(name)
		for _, cells := range rows {
			widths[i] = max(widths[i], runewidth.StringWidth(cells[i]))
		}
		total += widths[i]
	}
	for terminal > 0 && total > terminal && len(names) > 1 {
		widest := 1
		for i := range widths[1:] {
			if widths[i+1] >= widths[widest] {
				widest = i + 1
			}
		}
		if widths[widest] <= leastColumn {
			break
		}
		widths[widest]--
		total--
	}
	return widths
}

// line writes one line of a table. It does not pad the last column.
func line(b *strings.Builder, cells []string, widths []int, colour func(string) string) {
	for i, cell := range cells {
		cell = runewidth.Truncate(cell, widths[i], "…")
		gap := widths[i] - runewidth.StringWidth(cell) + 2
		if i == len(cells)-1 {
			gap = 0
		}
		b.WriteString(colour(cell))
		b.WriteString(strings.Repeat(" ", gap))
	}
	b.WriteString("\n")
}

// leastWatch is the minimum interval of --watch.
const leastWatch = 100 * time.Millisecond

// WatchFlag adds the --watch flag to a command that shows the current state. Its value is 0 if the flag is not set.
func WatchFlag(c *cobra.Command) *time.Duration {
	every := c.Flags().Duration("watch", 0, "refresh at this interval until ctrl-C; --watch alone: 2s")
	c.Flags().Lookup("watch").NoOptDefVal = "2s"
	return every
}

// frame buffers the output of one refresh.
type frame struct {
	bytes.Buffer
	screen io.Writer
}

// Watch calls show once or, if every is not 0, repeatedly until it is interrupted. On a terminal, it redraws in place; elsewhere, it prints
// one frame after another. During an outage, it shows the error and continues.
func Watch(c *cobra.Command, every time.Duration, show func(context.Context) error) error {
	switch {
	case every == 0:
		return show(c.Context())
	case every < leastWatch:
		return Usage("--watch=%s: want at least %s", every, leastWatch)
	}
	ctx, stop := OnSignal(c.Context())
	defer stop()
	out := c.OutOrStdout()
	defer c.SetOut(out)
	place := newCanvas(out)
	defer place.close()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		picture := &frame{screen: out}
		c.SetOut(picture)
		err := show(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if Code(err) != CodeUnavailable {
				return err
			}
			if place.screen == nil {
				fmt.Fprintln(c.ErrOrStderr(), "trapeze: "+text.OneLine(err))
			} else {
				fmt.Fprintln(picture, text.OneLine(err))
			}
		}
		if err := place.draw(picture.String(), WantsJSON(c)); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// canvas is the output on which frames are drawn.
type canvas struct {
	out    io.Writer
	screen *os.File // nil if the output is not a terminal
	drawn  bool
}

// newCanvas switches a terminal to its alternate screen, so that the previous contents reappear afterwards.
func newCanvas(out io.Writer) *canvas {
	p := &canvas{out: out, screen: screenOf(out)}
	if p.screen != nil {
		fmt.Fprint(out, "\x1b[?1049h\x1b[?25l")
	}
	return p
}

func (p *canvas) close() {
	if p.screen != nil {
		fmt.Fprint(p.out, "\x1b[?25h\x1b[?1049l")
	}
}

// draw replaces the previous frame with picture, truncated to the height of the terminal. If the output is not a terminal, frames are
// separated by an empty line unless they are JSON.
func (p *canvas) draw(picture string, lines bool) error {
	if p.screen == nil {
		if p.drawn && !lines && picture != "" {
			picture = "\n" + picture
		}
		p.drawn = true
		_, err := io.WriteString(p.out, picture)
		return err
	}
	_, height, err := term.GetSize(int(p.screen.Fd()))
	if err != nil || height < 2 {
		height = 24
	}
	_, err = io.WriteString(p.out, fit(picture, height))
	return err
}

// fit returns text that overwrites the previous frame. It moves to the top of the screen and clears the rest of every line.
func fit(picture string, height int) string {
	lines := strings.Split(strings.TrimSuffix(picture, "\n"), "\n")
	if len(lines) > height {
		more := len(lines) - height + 1
		lines = append(lines[:height-1], fmt.Sprintf("… %d more lines", more))
	}
	return "\x1b[H" + strings.Join(lines, "\x1b[K\n") + "\x1b[K\x1b[J"
}

// screenOf returns the terminal behind a writer, or nil if there is none.
func screenOf(to io.Writer) *os.File {
	if frame, ok := to.(*frame); ok {
		to = frame.screen
	}
	file, ok := to.(*os.File)
	if !ok || !isatty.IsTerminal(file.Fd()) || os.Getenv("TERM") == "dumb" {
		return nil
	}
	return file
}

// IsTerminal reports whether a writer writes to a terminal.
func IsTerminal(to io.Writer) bool { return screenOf(to) != nil }

// CanAsk reports whether an operator at a terminal can answer a question.
func CanAsk(c *cobra.Command) bool {
	in, reads := c.InOrStdin().(*os.File)
	out, writes := c.ErrOrStderr().(*os.File)
	return reads && writes && isatty.IsTerminal(in.Fd()) && isatty.IsTerminal(out.Fd())
}

// Confirm asks a question on stderr, and reports whether the answer is yes.
func Confirm(c *cobra.Command, question string) bool {
	_, _ = fmt.Fprint(c.ErrOrStderr(), question+" [y/N] ")
	answer, _ := bufio.NewReader(c.InOrStdin()).ReadString('\n') // the end of the input means no
	return slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(answer)))
}

// widthOf returns the width of a terminal in columns. It returns 0, which means no limit, if the writer is not a terminal.
func widthOf(to io.Writer) int {
	screen := screenOf(to)
	if screen == nil {
		return 0
	}
	width, _, err := term.GetSize(int(screen.Fd()))
	if err != nil || width <= 0 {
		return 100
	}
	return width
}

// Ink is true if words are printed in color.
type Ink bool

// InkFor returns an Ink that adds color only on a terminal, and only if NO_COLOR is not set (no-color.org).
func InkFor(to io.Writer) Ink { return Ink(IsTerminal(to) && os.Getenv("NO_COLOR") == "") }

const (
	Red    = "31"
	Green  = "32"
	Yellow = "33"
	faint  = "2"
)

func (i Ink) Colour(code, text string) string {
	if !i || code == "" || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// word colors the words that a reader should notice first.
func (i Ink) word(text string) string {
	code := ""
	switch text {
	case "failed", "lapsed", "lapsing", "refused":
		code = Red
	case "running", "alive":
		code = Green
	case "cancelled", "awaiting_approval", "partial", "drained", "draining", "disabled", "paused", "frozen":
		code = Yellow
	}
	return i.Colour(code, text)
}

// Wrap wraps text between words at a width, and indents every line except the first. It does not split long words.
func Wrap(text string, width int, indent string) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Split(text, " ") {
		length := runewidth.StringWidth(word)
		switch {
		case i == 0:
		case column+1+length > width:
			b.WriteString("\n" + indent)
			column = 0
		default:
			b.WriteString(" ")
			column++
		}
		b.WriteString(word)
		column += length
	}
	return b.String()
}
