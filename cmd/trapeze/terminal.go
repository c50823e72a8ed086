package main

import (
	"io"
	"os"
	"strings"
)

// ink colours words, or does not.
type ink bool

// inkFor colours on a terminal only, and not when NO_COLOR is set to anything (no-color.org).
func inkFor(to io.Writer) ink { return ink(isTerminal(to) && os.Getenv("NO_COLOR") == "") }

const (
	red    = "31"
	green  = "32"
	yellow = "33"
	faint  = "2"
)

func (i ink) colour(code, text string) string {
	if !i || code == "" || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// status shows how a finding is, four columns wide.
func (i ink) status(h health) string {
	code := map[health]string{healthy: green, warning: yellow, failing: red}[h]
	return i.colour(code, (string(h) + "    ")[:4])
}

// wrap breaks text between words into lines of a width; each but the first begins with the indent.
func wrap(text string, width int, indent string) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(text) {
		length := len([]rune(word))
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
