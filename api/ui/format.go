package ui

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/trapeze-run/trapeze/job"
)

// moment is a time in the formats shown on pages.
type moment struct{ ISO, Full, Clock, Text string }

// ago describes how far a time is from now, in the past or the future. It is empty for nil and for the zero time.
func ago(now time.Time, at any) moment {
	var t time.Time
	switch v := at.(type) {
	case time.Time:
		t = v
	case *time.Time:
		if v != nil {
			t = *v
		}
	}
	if t.IsZero() {
		return moment{}
	}
	m := moment{ISO: t.UTC().Format(time.RFC3339Nano), Full: t.UTC().Format("2006-01-02 15:04:05.000 UTC"), Clock: t.UTC().Format("2006-01-02 15:04:05 UTC")}
	switch d := now.Sub(t); {
	case d > -time.Second && d < time.Second:
		m.Text = "now"
	case d < 0:
		m.Text = "in " + length(-d)
	default:
		m.Text = length(d) + " ago"
	}
	return m
}

// lasted describes how long something took, or the time since it began. It is empty if began is nil.
func lasted(now time.Time, began, ended *time.Time) string {
	if began == nil {
		return ""
	}
	if ended != nil {
		now = *ended
	}
	return length(max(now.Sub(*began), 0))
}

// at returns a pointer to t, as lasted requires.
func at(t time.Time) *time.Time { return &t }

// length formats a duration with at most two units.
func length(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm %02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh %02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd %dh", int(d.Hours())/24, int(d.Hours())%24)
}

// number formats an integer with thousands separators.
func number[N int | int64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// upTo formats a number that was counted only up to a limit.
func upTo(most, n int) string {
	if n >= most {
		return number(most) + "+"
	}
	return number(n)
}

// percent returns n of a whole as a number from 0 to 100.
func percent(n, whole int64) int64 {
	if whole <= 0 {
		return 0
	}
	return min(max(n*100/whole, 0), 100)
}

// plain returns untrusted text on one line. Invisible characters and characters that change the writing direction are made visible.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsPrint(r):
			return r
		case unicode.IsSpace(r):
			return ' '
		}
		return unicode.ReplacementChar
	}, s)
}

// lines is like plain, but keeps line breaks and tabs.
func lines(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

// short is like plain, but truncates the text to n characters.
func short(n int, s string) string {
	s = plain(s)
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

// mostJSON is the maximum number of bytes of a value that a page shows.
const mostJSON = 64 << 10

// pretty formats JSON for display.
func pretty(raw json.RawMessage) string {
	if len(raw) == 0 {
		return ""
	}
	var b bytes.Buffer
	if json.Indent(&b, raw, "", "  ") != nil {
		b.Reset()
		b.Write(raw)
	}
	if b.Len() <= mostJSON {
		return lines(b.String())
	}
	return lines(strings.ToValidUTF8(b.String()[:mostJSON], "")) + fmt.Sprintf("\n… %s more bytes", number(b.Len()-mostJSON))
}

// editable formats JSON for an editor. It omits nothing and escapes invisible characters. If the value is too long for a form, it returns
// an empty string.
func editable(raw json.RawMessage) string {
	var b bytes.Buffer
	if len(raw) > mostJSON || json.Indent(&b, raw, "", "  ") != nil {
		return ""
	}
	var text strings.Builder
	for _, r := range b.String() {
		if r == '\n' || unicode.IsPrint(r) {
			text.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) { // such characters occur only in strings
			fmt.Fprintf(&text, `\u%04x`, unit)
		}
	}
	return text.String()
}

// rowsFor returns the height of a text field for a list, in lines.
func rowsFor(list []string) int { return min(max(len(list)+1, 2), 12) }

func orEmpty[S ~string](s *S) string {
	if s == nil {
		return ""
	}
	return string(*s)
}

// calls returns the display name of a state or reason. If it has none, calls replaces its underscores with spaces.
func calls(name any) string {
	s := fmt.Sprint(name)
	if said := job.BlockerType(s).Words(); said != "" {
		return said
	}
	return plain(strings.ReplaceAll(s, "_", " "))
}

func title(s string) string {
	r, size := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(r)) + s[size:]
}

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
