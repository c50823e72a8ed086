package text

import (
	"regexp"
	"strings"
)

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
