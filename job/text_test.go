package job_test

import (
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
)

func TestWhatPostgreSQLCannotStoreIsFound(t *testing.T) {
	for text, what := range map[string]string{
		`"a\u0000b"`:              "a NUL character",
		`"\\\u0000"`:              "a NUL character", // after a backslash
		`"C:\\u0000"`:             "",                // a backslash, then letters
		`{"text":"\\\\u0000"}`:    "",                // two of them
		`{"\u0000":1}`:            "a NUL character",
		`"\ud83d\ude00"`:          "", // both halves of a pair
		`"\uD83D\uDE00\u00e9"`:    "",
		`"\ud83d"`:                "half of a surrogate pair",
		`"\ude00"`:                "half of a surrogate pair",
		`"\ude00\ud83d"`:          "half of a surrogate pair", // the wrong way round
		`"\ud83d \ude00"`:         "half of a surrogate pair",
		`"\ud83d\u0041"`:          "half of a surrogate pair",
		`"\ud83d\\ude00"`:         "half of a surrogate pair",
		`"\ud83d\ude00\ude00"`:    "half of a surrogate pair",
		`"\\ud83d"`:               "", // letters
		"\"\xff\"":                "bytes that are no UTF-8",
		"\"\xed\xa0\x80\"":        "bytes that are no UTF-8", // half of a pair, not escaped
		`\`:                       "",                        // no JSON, which is not the question
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
