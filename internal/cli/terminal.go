package cli

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/mattn/go-isatty"
	"github.com/mattn/go-runewidth"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

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
