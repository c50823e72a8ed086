package show

import (
	"io"
	"os"
	"strings"

	"github.com/mattn/go-isatty"
	"github.com/mattn/go-runewidth"
	"golang.org/x/term"
)

// screenOf finds the terminal that a person watches; nil: there is none.
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

// IsTerminal reports whether a person watches what is written.
func IsTerminal(to io.Writer) bool { return screenOf(to) != nil }

// widthOf is how many columns a terminal has; 0: it is none, and what is written may be as wide as it likes.
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

// Ink colours words, or does not.
type Ink bool

// InkFor colours on a terminal only, and not when NO_COLOR is set to anything (no-color.org).
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

// word colours the words that somebody should see first.
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

// Wrap breaks text between words into lines of a width; each but the first begins with the indent. A word that is longer stays whole.
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
