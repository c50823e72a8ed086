package show

import (
	"io"
	"os"
	"strings"

	"github.com/mattn/go-isatty"
	"github.com/mattn/go-runewidth"
	"golang.org/x/term"
)

// screenOf returns the terminal behind a writer; nil: there is none.
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

// IsTerminal reports whether the output goes to a terminal.
func IsTerminal(to io.Writer) bool { return screenOf(to) != nil }

// widthOf returns the number of columns of a terminal; 0: not a terminal, no limit.
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

// Ink colours words if it is true.
type Ink bool

// InkFor returns an Ink that colours only on a terminal, and not if NO_COLOR is set to any value (no-color.org).
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

// word colours the words that a reader should notice first.
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

// Wrap wraps text between words to lines of a width; each but the first begins with the indent. It does not split a longer word.
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
