// Package shell quotes words for commands that people paste into a POSIX shell.
package shell

import (
	"regexp"
	"strings"
)

var plain = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.:/@+-]*$`)

// Word returns text as one word, quoted if necessary, so that the shell does not expand it. A command still interprets a word that begins
// with - as a flag. Control characters, which a terminal might interpret, are replaced by question marks.
func Word(text string) string {
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
