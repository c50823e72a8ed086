package runner_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/schema"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

const latin1 = "encoding 'LATIN1' locale 'C'"

func TestUnstorableTextInLatin1(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Connect(t, pgtest.WithParameter(pgtest.URLWith(t, latin1), "client_encoding=UTF8"))
	long := strings.Repeat("a", 2*job.MaxErrorBytes)
	fails := func(text string) handler {
		return func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) { return nil, errors.New(text) }
	}
	snoozed := false
	r := start(t, pool, runner.Options{MaxAttempts: 2}, map[string]handler{
		"ok": succeed, "arrow": fails("a → b"), "long": fails(long),
		"result": func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			return runner.Done("→"), nil
		},
		"snooze": func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			if snoozed {
				return nil, nil
			}
			snoozed = true
			return runner.Snooze(0, "→"), nil
		},
	})
	for _, options := range [][]runner.EnqueueOption{{runner.Subject("→")}, {runner.IdempotencyKey("→")}} {
		_, err := r.Enqueue(t.Context(), rawArgs("ok"), options...)
		is.True(errors.Is(err, job.ErrInvalid))
	}
	_, err := r.Enqueue(t.Context(), rawArgs("ok", `"→"`))
	is.True(errors.Is(err, job.ErrInvalid) && strings.Contains(err.Error(), "the database's encoding cannot store one of the texts"))
	id := enqueue(t, r, rawArgs("ok", `"é"`))
	is.Equal(queryOne[string](t, pool, `select args::text from trapeze.jobs where id = $1`, id), `"é"`)
	is.Equal(queryOne[int](t, pool, `select octet_length(args::text) from trapeze.jobs where id = $1`, id), 3) // one byte, as for other clients

	arrow := waitEnded(t, r, enqueue(t, r, rawArgs("arrow")))
	is.Equal(*arrow.Error, `a \u2192 b`)
	is.Equal(arrow.Attempt, 2) // the text does not use up the attempts
	is.Equal(*arrow.Reason, job.ReasonAttemptsExhausted)
	is.True(strings.HasSuffix(*waitEnded(t, r, enqueue(t, r, rawArgs("long"))).Error, "aaa..."))
	is.Equal(*waitEnded(t, r, enqueue(t, r, rawArgs("result"))).Reason, job.ReasonUnstorable)
	is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("snooze"))).State, job.Succeeded)
}

func TestNonUTF8Sessions(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	for _, encoding := range []string{"LATIN1", "SQL_ASCII"} {
		pool := pgtest.Connect(t, pgtest.WithParameter(pgtest.URL(t), "client_encoding="+encoding))
		err := schema.Check(t.Context(), pool, pgtest.Schema)
		is.True(errors.Is(err, schema.ErrEncoding))
		is.Equal(err.Error(), "the client_encoding of the sessions is "+encoding+": add client_encoding=UTF8 to the connection string")
	}
}

// A SQL_ASCII database accepts any bytes. A job whose text is not UTF-8 would make every claim of its lane fail.
func TestSQLASCIIRefusesTextThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Connect(t, pgtest.WithParameter(pgtest.URLWith(t, "encoding 'SQL_ASCII' locale 'C'"), "client_encoding=UTF8"))
	const raw = `set client_encoding = 'SQL_ASCII'; select trapeze.enqueue('k', subject => E'caf\xe9'); reset client_encoding`
	_, err := pool.Exec(t.Context(), raw)
	is.True(err != nil && strings.Contains(err.Error(), "invalid submission: text that is not UTF-8 (SQLSTATE TZ001)"))
	pool.Reset()
	r := start(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	id := queryOne[int64](t, pool, `select id from trapeze.enqueue('k', subject => 'café')`)
	is.Equal(waitEnded(t, r, id).Subject, "café")
}
