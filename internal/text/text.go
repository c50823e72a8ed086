// Package text turns values into text that users read, and text that users type into values: counts, durations and times; ids, states and
// limits; words of a shell; JSON; cursors of lists. It also makes untrusted text safe to print.
package text

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Printable makes untrusted text safe to print on one line of a terminal. It replaces control characters, including those that begin escape
// sequences, and characters that change the writing direction.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == unicode.ReplacementChar || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp) {
			return '·'
		}
		return r
	}, s)
}

// Short truncates text to limit characters.
func Short(s string, limit int) string {
	if runes := []rune(s); len(runes) > limit {
		return string(runes[:limit-1]) + "…"
	}
	return s
}

// Clock formats a time in UTC. It returns an empty string for nil and for the zero time.
func Clock(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// ClockIn formats a time in a time zone, with its offset. If the zone is unknown on this machine, it uses UTC.
func ClockIn(zone string, t *time.Time) string {
	place, err := time.LoadLocation(zone)
	if t == nil || t.IsZero() || err != nil {
		return Clock(t)
	}
	return t.In(place).Format("2006-01-02 15:04:05Z07:00")
}

// Ago formats the duration from t until now. It returns an empty string for nil and for the zero time.
func Ago(t *time.Time, now time.Time) string {
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

// OneLine returns an error's text as one printable line. It removes duplicate lines, because the driver reports each address that it has
// tried on a separate line, and may report an address twice.
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

// Count formats a number with a noun in the singular or plural.
func Count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// Seconds formats a number of seconds as a rounded duration.
func Seconds(s float64) string { return Round(time.Duration(s * float64(time.Second))).String() }

// Round rounds durations above 10 s to seconds, and shorter ones to tenths of a millisecond.
func Round(d time.Duration) time.Duration {
	if d > 10*time.Second {
		return d.Round(time.Second)
	}
	return d.Round(time.Millisecond / 10)
}

// JSON returns the JSON encoding of v on one line, without a trailing newline.
func JSON(v any) (json.RawMessage, error) {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	return bytes.TrimSuffix(buffer.Bytes(), []byte("\n")), err
}

var plain = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.:/@+-]*$`)

// ShellWord returns text as one word, quoted if necessary, so that the shell does not expand it. A command still interprets a word that begins
// with - as a flag. Control characters, which a terminal might interpret, are replaced by question marks.
func ShellWord(text string) string {
	if plain.MatchString(text) {
		return text
	}
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, text)
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
