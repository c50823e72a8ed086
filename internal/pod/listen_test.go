package pod

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/fleet"
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

// A pod that closes sends the wake-ups that it has delayed to merge them with others.
func TestDelayedWakeUpsAtClose(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPod(t)
	listening, err := p.Pool.Acquire(t.Context())
	is.NoErr(err)
	defer listening.Release()
	channels := []string{p.Commands.Channel(), p.Commands.AllChannel()}
	for _, channel := range channels {
		_, err := listening.Exec(t.Context(), "listen "+pgx.Identifier{channel}.Sanitize())
		is.NoErr(err)
	}
	for _, pods := range []*fleet.Sender{p.front, p.all} {
		pods.Send(true)
		pods.Send(false) // planned
	}
	p.Close()
	_, err = p.Pool.Exec(t.Context(), `select pg_notify('`+channels[0]+`', 'end')`)
	is.NoErr(err)
	heard := map[string]int{}
	for {
		note, err := listening.Conn().WaitForNotification(t.Context())
		is.NoErr(err)
		if note.Payload == "end" {
			break
		}
		heard[note.Channel]++
	}
	is.Equal(heard, map[string]int{channels[0]: 2, channels[1]: 2})
}
