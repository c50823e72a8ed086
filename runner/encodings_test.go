package runner_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/schema"
	"github.com/trapeze-run/trapeze/runner"
)

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
