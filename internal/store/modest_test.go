package store_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/view"
)

func TestSlowReadsReserveConnection(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	w := newWorldOn(t, pgtest.Pool(t), store.Options{Connections: 3})
	modest := w.Modest(2)
	release := w.freeze(`lock table trapeze.audit in access exclusive mode`)
	var reads []func() ([]admin.AuditRow, error)
	for range 6 {
		reads = append(reads, async(func() ([]admin.AuditRow, error) { return admin.AuditTrail(w.ctx(), modest, admin.AuditFilter{}) }))
	}
	w.waiting(2) // the other reads are waiting for their turn
	_, err := view.Job(w.ctx(), w.Store, w.put(plain)[0])
	is.NoErr(err) // a command does not wait for the reads
	soon, cancel := context.WithTimeout(w.ctx(), 50*time.Millisecond)
	defer cancel()
	_, err = admin.AuditTrail(soon, modest, admin.AuditFilter{})
	is.True(errors.Is(err, context.DeadlineExceeded)) // the wait for a turn ends with the context
	soon, cancel = context.WithTimeout(w.ctx(), 50*time.Millisecond)
	defer cancel()
	is.True(errors.Is(modest.Tx(soon, func(pgx.Tx) error { return nil }), context.DeadlineExceeded)) // transactions also wait for a turn
	release(true)
	for _, read := range reads {
		_, err := read()
		is.NoErr(err)
	}
}
