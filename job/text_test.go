package job_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
)

func TestTextUnstorableInPostgres(t *testing.T) {
	for text, what := range map[string]string{
		`"a\u0000b"`:              "a NUL character",
		`"\\\u0000"`:              "a NUL character", // NUL after an escaped backslash
		`"C:\\u0000"`:             "",                // an escaped backslash followed by letters
		`{"text":"\\\\u0000"}`:    "",                // two escaped backslashes
		`{"\u0000":1}`:            "a NUL character",
		`"\ud83d\ude00"`:          "", // a complete surrogate pair
		`"\uD83D\uDE00\u00e9"`:    "",
		`"\ud83d"`:                "an unpaired surrogate",
		`"\ude00"`:                "an unpaired surrogate",
		`"\ude00\ud83d"`:          "an unpaired surrogate", // the halves in the wrong order
		`"\ud83d \ude00"`:         "an unpaired surrogate",
		`"\ud83d\u0041"`:          "an unpaired surrogate",
		`"\ud83d\\ude00"`:         "an unpaired surrogate",
		`"\ud83d\ude00\ude00"`:    "an unpaired surrogate",
		`"\\ud83d"`:               "", // an escaped backslash followed by letters
		"\"\xff\"":                "invalid UTF-8",
		"\"\xed\xa0\x80\"":        "invalid UTF-8", // an unescaped surrogate
		`\`:                       "",              // invalid JSON, which is not checked here
		`\u`:                      "",
		`\u00zz`:                  "",
		"":                        "",
		`"\u0001\"\/\b\f\n\r\té"`: "",
	} {
		t.Run(text, func(t *testing.T) {
			is := is.New(t)
			is.Equal(job.Unstorable([]byte(text)), what)
		})
	}
}

// Storable must make any text storable within its limit, and leave valid text unchanged. The text comes from handlers' errors, events and
// progress.
func FuzzAnyTextIsMadeStorable(f *testing.F) {
	for _, text := range []string{"", "fine", "a\x00b", "\xff", "é\xc3", "\xed\xa0\x80", strings.Repeat("é", 50), strings.Repeat("\x00", 40), "\ufffd…"} {
		f.Add(text, 40)
	}
	f.Fuzz(func(t *testing.T, text string, limit int) {
		limit = max(3, limit) // the truncation marker alone takes three bytes
		cleaned := job.Storable(text, limit)
		if len(cleaned) > limit || !utf8.ValidString(cleaned) || strings.ContainsRune(cleaned, 0) {
			t.Errorf("%q, limited to %d bytes, becomes %q", text, limit, cleaned)
		}
		if good := utf8.ValidString(text) && !strings.ContainsRune(text, 0) && len(text) <= limit; good && cleaned != text {
			t.Errorf("%q becomes %q", text, cleaned)
		}
		if again := job.Storable(cleaned, limit); again != cleaned {
			t.Errorf("%q becomes %q", cleaned, again)
		}
	})
}
