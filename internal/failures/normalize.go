package failures

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxBytes is the number of leading bytes of an error that are compared. Errors that differ only beyond it belong to the same group.
const MaxBytes = 300

// Line returns the first non-empty line of an error, cut to [MaxBytes].
func Line(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	if len(line) > MaxBytes {
		line = strings.ToValidUTF8(line[:MaxBytes], "")
	}
	return strings.Clone(strings.TrimSpace(line)) // a copy, so that a line that is kept does not keep the whole text in memory
}

// Normalize returns an error's first line with its variable parts replaced. Numbers, dates, addresses, UUIDs, hexadecimal values and other
// ids become #, and quoted text becomes "…".
func Normalize(text string) string {
	n := pattern{in: Line(text)}
	for n.at < len(n.in) {
		n.next()
	}
	return string(n.out)
}

// pattern is an error that has been normalized up to a position.
type pattern struct {
	in  string
	at  int
	out []byte
}

// next normalizes the next word, quoted text or single character.
func (n *pattern) next() {
	rest := n.in[n.at:]
	if end := quoted(n.in, n.at); end > 0 {
		quote := rest[:1]
		n.out = append(append(append(n.out, quote...), "…"...), quote...)
		n.at = end
		return
	}
	if uuid(rest) {
		n.mark()
		n.at += uuidBytes
		return
	}
	if word := rest[:wordBytes(rest)]; word != "" {
		n.word(word)
		n.at += len(word)
		return
	}
	r, size := utf8.DecodeRuneInString(rest)
	switch {
	case !unicode.IsSpace(r):
		n.out = append(n.out, rest[:size]...)
	case len(n.out) > 0 && n.out[len(n.out)-1] != ' ':
		n.out = append(n.out, ' ')
	}
	n.at += size
}

// word normalizes a run of letters and digits.
func (n *pattern) word(word string) {
	digit := strings.IndexFunc(word, unicode.IsDigit)
	switch {
	case digit < 0:
		n.out = append(n.out, word...)
	case digit == 0, len(word) >= 16, len(word) >= 6 && strings.Trim(word, "0123456789abcdefABCDEF") == "":
		n.mark() // a number with or without a unit, a random id or a hexadecimal value
	default:
		for _, r := range word {
			if unicode.IsDigit(r) {
				n.mark()
			} else {
				n.out = utf8.AppendRune(n.out, r)
			}
		}
	}
}

// mark appends a # for a variable part. It merges adjacent parts, so that a time, version, address or list becomes a single #.
func (n *pattern) mark() {
	for _, between := range []string{"", "-", "+", ".", ",", ":", "/", "_", " ", ", ", " -", " +"} {
		if bytes.HasSuffix(n.out, []byte("#"+between)) {
			n.out = n.out[:len(n.out)-len(between)]
			return
		}
	}
	if t := len(n.out); t > 0 && (n.out[t-1] == '-' || n.out[t-1] == '+') && (t == 1 || strings.IndexByte(" (=:,[", n.out[t-2]) >= 0) {
		n.out = n.out[:t-1] // the sign of a number
	}
	n.out = append(n.out, '#')
}

// quoted returns the end of the quoted text that begins at the given position, or 0 if none begins there. If the closing " or ` is missing,
// for example because the error was cut, the quoted text extends to the end of the error. An unclosed ', or an apostrophe within or after a
// word, is not a quote.
func quoted(in string, at int) int {
	quote := in[at]
	if quote != '"' && quote != '`' && quote != '\'' {
		return 0
	}
	if before, _ := utf8.DecodeLastRuneInString(in[:at]); quote == '\'' && wordRune(before) {
		return 0
	}
	for i := at + 1; i < len(in); i++ {
		switch {
		case in[i] == '\\' && quote != '`':
			i++
		case in[i] == quote:
			if after, _ := utf8.DecodeRuneInString(in[i+1:]); quote != '\'' || !wordRune(after) {
				return i + 1
			}
		}
	}
	if quote == '\'' {
		return 0
	}
	return len(in)
}

func wordRune(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }

// wordBytes returns the length of the word at the start of a text.
func wordBytes(text string) int {
	if end := strings.IndexFunc(text, func(r rune) bool { return !wordRune(r) }); end >= 0 {
		return end
	}
	return len(text)
}

const uuidBytes = 36

// uuid reports whether a text begins with a UUID that is not followed by a letter or digit.
func uuid(text string) bool {
	if len(text) < uuidBytes {
		return false
	}
	for i := range uuidBytes {
		dash := i == 8 || i == 13 || i == 18 || i == 23
		if dash != (text[i] == '-') || !dash && strings.IndexByte("0123456789abcdefABCDEF", text[i]) < 0 {
			return false
		}
	}
	after, _ := utf8.DecodeRuneInString(text[uuidBytes:])
	return !wordRune(after)
}
