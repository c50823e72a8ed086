// Package show prints the output of commands: tables that fit the terminal, JSON lines, facts, colours, and views that are redrawn. It
// removes control characters from untrusted text.
package show

import (
	"encoding/json"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/job"
)

// JSON prints one value on one line.
func JSON(c *cobra.Command, v any) error {
	encoder := json.NewEncoder(c.OutOrStdout())
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

// Printable makes text of anybody's fit for one line of a terminal: no control characters, so no escape sequences, and nothing that turns
// the direction of what follows around, so that a line says what it seems to say.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == unicode.ReplacementChar || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp) {
			return '·'
		}
		return r
	}, s)
}

// Short cuts text to a number of characters.
func Short(s string, limit int) string {
	if runes := []rune(s); len(runes) > limit {
		return string(runes[:limit-1]) + "…"
	}
	return s
}

// Clock shows a moment in UTC; empty when there is none.
func Clock(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// ClockIn shows a moment as the clocks of a zone show it, with their offset; in UTC where this machine does not know the zone.
func ClockIn(zone string, t *time.Time) string {
	place, err := time.LoadLocation(zone)
	if t == nil || t.IsZero() || err != nil {
		return Clock(t)
	}
	return t.In(place).Format("2006-01-02 15:04:05Z07:00")
}

// Since shows how long ago a moment was.
func Since(t *time.Time, now time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	d := max(now.Sub(*t), 0)
	switch {
	case d < time.Minute:
		return d.Truncate(100 * time.Millisecond).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// Progress shows how far a job says it is.
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
		parts = append(parts, Short(*p.Message, 60))
	}
	return strings.Join(parts, " ")
}

// Text returns what a pointer points at, or nothing.
func Text[T ~string](p *T) string {
	if p == nil {
		return ""
	}
	return string(*p)
}

// OneLine makes an error one line that a terminal can show. The driver reports each address it tried on a line of its
// own, and some twice.
func OneLine(err error) string {
	var b strings.Builder
	said := map[string]bool{}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		if line = strings.TrimSpace(line); line == "" || said[line] {
			continue
		}
		said[line] = true
		switch {
		case b.Len() == 0:
		case strings.HasSuffix(b.String(), ":"):
			b.WriteString(" ")
		default:
			b.WriteString("; ")
		}
		b.WriteString(line)
	}
	return Printable(b.String())
}

// WantsJSON reports whether a command was asked for JSON.
func WantsJSON(c *cobra.Command) bool {
	json, _ := c.Flags().GetBool("json")
	return json
}

// mostLines is how many lines of a fact are shown: a stack may have hundreds.
const mostLines = 40

// Fact writes what is known under a name, broken between words to lines of 100 columns; nothing when nothing is known.
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
		b.WriteString(colours.word(Wrap(Printable(strings.ReplaceAll(one, "\t", "  ")), 100-indent, strings.Repeat(" ", indent))) + "\n")
	}
}

// Count returns a number with its word, in the singular or the plural.
func Count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// Seconds shows a number of seconds.
func Seconds(s float64) string { return Round(time.Duration(s * float64(time.Second))).String() }

// Round makes a length of time fit to be shown.
func Round(d time.Duration) time.Duration {
	if d > 10*time.Second {
		return d.Round(time.Second)
	}
	return d.Round(time.Millisecond / 10)
}

// List prints rows as they come: with --json an object a line, else as a table below a head.
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

// Rows are those of a list, for [List].
func Rows[T any](list []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, one := range list {
			if !yield(one, nil) {
				return
			}
		}
	}
}

// Done prints what a command did: with --json as an object, else as a line.
func Done(c *cobra.Command, v any, format string, args ...any) error {
	if WantsJSON(c) {
		return JSON(c, v)
	}
	_, err := fmt.Fprintln(c.OutOrStdout(), Printable(fmt.Sprintf(format, args...)))
	return err
}
