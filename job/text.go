package job

import (
	"bytes"
	"database/sql/driver"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"
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

// Seconds is a duration that JSON and the database represent as a number of seconds. The name of a field with this type ends with the unit:
// max_age_s. Convert from a [time.Duration], as in Seconds(48 * time.Hour). A number too large for a Duration is decoded as the longest
// Duration.
type Seconds time.Duration

// Duration returns s as a [time.Duration].
func (s Seconds) Duration() time.Duration { return time.Duration(s) }

// String formats s like a [time.Duration].
func (s Seconds) String() string { return s.Duration().String() }

// MarshalJSON implements [json.Marshaler].
func (s Seconds) MarshalJSON() ([]byte, error) { return json.Marshal(s.Duration().Seconds()) }

// Value implements [driver.Valuer].
func (s Seconds) Value() (driver.Value, error) { return int64(s.Duration() / time.Second), nil }

// UnmarshalJSON implements [json.Unmarshaler].
func (s *Seconds) UnmarshalJSON(raw []byte) error {
	var n *float64
	if err := json.Unmarshal(raw, &n); err != nil || n == nil {
		return err
	}
	return s.Scan(*n)
}

// Scan implements [database/sql.Scanner].
func (s *Seconds) Scan(column any) error {
	var n float64
	switch column := column.(type) {
	case int64:
		n = float64(column)
	case float64:
		n = column
	default:
		return fmt.Errorf("want a number of seconds, have %T", column)
	}
	switch n = math.Round(n * float64(time.Second)); {
	case n >= math.MaxInt64:
		*s = math.MaxInt64
	case n <= math.MinInt64:
		*s = math.MinInt64
	default:
		*s = Seconds(n)
	}
	return nil
}
