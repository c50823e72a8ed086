package store

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestSlowReadsLeaveAConnectionToCommands(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	w := newWorldOn(t, pgtest.Pool(t), Options{Connections: 3})
	modest := w.Modest(2)
	release := w.freeze(`lock table trapeze.audit in access exclusive mode`)
	var reads []func() ([]AuditRow, error)
	for range 6 {
		reads = append(reads, async(func() ([]AuditRow, error) { return modest.AuditTrail(w.ctx(), AuditFilter{}) }))
	}
	w.waiting(2) // the others wait for their turn
	_, err := w.Job(w.ctx(), w.put(plain)[0])
	is.NoErr(err) // goes on beside them
	soon, cancel := context.WithTimeout(w.ctx(), 50*time.Millisecond)
	defer cancel()
	_, err = modest.AuditTrail(soon, AuditFilter{})
	is.True(errors.Is(err, context.DeadlineExceeded)) // nobody waits for ever
	release(true)
	for _, read := range reads {
		_, err := read()
		is.NoErr(err)
	}
}
