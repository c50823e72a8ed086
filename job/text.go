package job

import (
	"bytes"
	"encoding/hex"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Unstorable describes the content that prevents PostgreSQL from storing raw JSON as text, or returns the empty string if there is none. It
// detects invalid UTF-8, escaped NUL characters, and unpaired escaped surrogates. encoding/json replaces an unpaired surrogate, but
// PostgreSQL rejects it when it parses the text.
func Unstorable(raw []byte) string {
	if !utf8.Valid(raw) {
		return "invalid UTF-8"
	}
	for {
		at := bytes.IndexByte(raw, '\\')
		if at < 0 {
			return ""
		}
		raw = raw[at:]
		unit, ok := escaped(raw)
		switch {
		case !ok:
			raw = raw[min(2, len(raw)):] // skip the escaped character, which can be a backslash
		case unit == 0:
			return "a NUL character"
		case utf16.IsSurrogate(unit):
			half, _ := escaped(raw[6:])
			if utf16.DecodeRune(unit, half) == utf8.RuneError {
				return "an unpaired surrogate"
			}
			raw = raw[12:]
		default:
			raw = raw[6:]
		}
	}
}

// escaped reads the escape sequence at the start of text. ok is false unless the sequence has the form \uXXXX with four hexadecimal digits.
func escaped(text []byte) (unit rune, ok bool) {
	var two [2]byte
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0, false
	}
	_, err := hex.Decode(two[:], text[2:6])
	return rune(two[0])<<8 | rune(two[1]), err == nil
}

// Storable returns s in a form that PostgreSQL can store: valid UTF-8 without NUL characters, truncated to limit bytes.
func Storable(s string, limit int) string {
	s = strings.ToValidUTF8(s, "�")
	s = strings.ReplaceAll(s, "\x00", "�")
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit-len("...")], "") + "..." // ASCII, which every database can store
	}
	return s
}
