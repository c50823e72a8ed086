package pod

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"
)

// A query that fails ends the session. The queries behind it are answered when the session has ended, so that no caller waits for its timeout.
func TestQueriesBehindFailedQuery(t *testing.T) {
	is := is.New(t)
	torn := errors.New("torn")
	var l listener
	var answered []string
	ask := func(name string, err error) func(*pgx.Conn) error {
		return func(*pgx.Conn) error { answered = append(answered, name); return err }
	}
	l.asks = []func(*pgx.Conn) error{ask("first", nil), ask("second", torn), ask("third", nil)}
	asked, err := l.lend(nil)
	is.True(asked)
	is.Equal(err, torn)
	is.Equal(answered, []string{"first", "second"}) // the session is broken
	l.ends(err)
	is.Equal(answered, []string{"first", "second", "third"})
}
