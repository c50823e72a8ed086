package store_test

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/trapeze-run/trapeze/job"
)

// PostgreSQL itself serves as the reference, because a cast to jsonb validates every character of the JSON.
func FuzzStorableText(f *testing.F) {
	for _, text := range []string{`{}`, `"a\u0000"`, `"\\u0000"`, `"\\\u0000"`, `{"\u0000":1}`, `"\ud83d\ude00"`, `"\ud83d"`, `["\ude00\ud83d"]`,
		`"\ud83d\\ude00"`, `"\uD83Dx\uDE00"`, `"\ud83d\n"`, "\"\xff\"", "\"\xed\xa0\x80\"", `"\ufffd�"`, `{"a":[1e400,"<b>\/"]}`, `[[[]]]`, ``, `"\`} {
		f.Add([]byte(text))
	}
	w := newWorld(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		if !json.Valid(raw) {
			return
		}
		what := job.Unstorable(raw)
		_, err := w.pool.Exec(t.Context(), `select $1::text::jsonb`, string(raw))
		var refusal *pgconn.PgError
		switch {
		case err == nil && what != "":
			t.Errorf("PostgreSQL accepts %q, but Unstorable rejects it: %s", raw, what)
		case err == nil || what != "":
		case errors.As(err, &refusal) && slices.Contains([]string{"22003", "54000", "54001"}, refusal.Code):
			// The value exceeds jsonb's limits on numbers or nesting. The store uses json, to which those limits do not apply.
		default:
			t.Errorf("PostgreSQL rejects %q, but Unstorable accepts it: %v", raw, err)
		}
	})
}
