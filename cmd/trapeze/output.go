package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/job"
)

// printJSON prints one value on one line.
func printJSON(c *cobra.Command, v any) error {
	encoder := json.NewEncoder(c.OutOrStdout())
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

// printable makes text of anybody's fit for one line of a terminal: no control characters, so no escape sequences, and nothing that turns
// the direction of what follows around, so that a line says what it seems to say.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == unicode.ReplacementChar || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp) {
			return '·'
		}
		return r
	}, s)
}

// short cuts text to a number of characters.
func short(s string, limit int) string {
	if runes := []rune(s); len(runes) > limit {
		return string(runes[:limit-1]) + "…"
	}
	return s
}

// clock shows a moment in UTC; empty when there is none.
func clock(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// clockIn shows a moment as the clocks of a zone show it, with their offset; in UTC where this machine does not know the zone.
func clockIn(zone string, t *time.Time) string {
	place, err := time.LoadLocation(zone)
	if t == nil || t.IsZero() || err != nil {
		return clock(t)
	}
	return t.In(place).Format("2006-01-02 15:04:05Z07:00")
}

// since shows how long ago a moment was.
func since(t *time.Time, now time.Time) string {
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

// progressOf shows how far a job says it is.
func progressOf(p *job.Progress) string {
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
		parts = append(parts, short(*p.Message, 60))
	}
	return strings.Join(parts, " ")
}

// text is what a pointer points at, or nothing.
func text[T ~string](p *T) string {
	if p == nil {
		return ""
	}
	return string(*p)
}

// oneLine makes an error one line that a terminal can show. The driver reports each address it tried on a line of its
// own, and some twice.
func oneLine(err error) string {
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
	return printable(b.String())
}

// wantsJSON reports whether a command was asked for JSON.
func wantsJSON(c *cobra.Command) bool {
	json, _ := c.Flags().GetBool("json")
	return json
}

// mostLines is how many lines of a fact are shown: a stack may have hundreds.
const mostLines = 40

// fact writes what is known under a name, broken between words to lines of 100 columns; nothing when nothing is known.
func fact(b *strings.Builder, colours ink, name, value string) {
	const indent = 15
	if value == "" || value == "null" {
		return
	}
	lines := strings.Split(strings.TrimRight(value, "\n"), "\n")
	if more := len(lines) - mostLines; more > 0 {
		lines = append(lines[:mostLines], fmt.Sprintf("… %d more lines: --json has them", more))
	}
	fmt.Fprintf(b, "%s", colours.colour(faint, fmt.Sprintf("%-*s", indent, name)))
	for i, one := range lines {
		one = strings.TrimRight(one, " \t\r")
		if i > 0 && one != "" {
			fmt.Fprintf(b, "%*s", indent, "")
		}
		b.WriteString(colours.word(wrap(printable(strings.ReplaceAll(one, "\t", "  ")), 100-indent, strings.Repeat(" ", indent))) + "\n")
	}
}

// countOf says how many there are of something.
func countOf(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// seconds shows a number of seconds, and round makes a length of time fit to be shown.
func seconds(s float64) string { return round(time.Duration(s * float64(time.Second))).String() }

func round(d time.Duration) time.Duration {
	if d > 10*time.Second {
		return d.Round(time.Second)
	}
	return d.Round(time.Millisecond / 10)
}
