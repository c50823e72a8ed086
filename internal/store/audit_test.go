package store_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

func TestAuditActorOriginAndReason(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := job.WithOrigin(w.ctx(), job.Origin{Source: "cli", RequestID: "r-1", Reason: "the provider is down"})
	w.is.NoErr(admin.Audit(ctx, w.Store, admin.AuditEntry{Actor: "ana", Action: "lane.drain", Target: "lane default", Before: map[string]bool{"drained": false}}))
	w.is.NoErr(admin.Audit(w.ctx(), w.Store, admin.AuditEntry{Actor: "bob", Action: "job.cancel", Target: "job 7", Refused: "needs jobs:cancel"}))

	list, err := admin.AuditTrail(w.ctx(), w.Store, admin.AuditFilter{})
	w.is.NoErr(err)
	w.is.Equal(len(list), 2)
	bob, ana := list[0], list[1] // newest first
	w.is.Equal([]string{ana.Actor, ana.Source, ana.RequestID, ana.Reason}, []string{"ana", "cli", "r-1", "the provider is down"})
	w.is.True(ana.Allowed)
	w.is.Equal(string(ana.Before), `{"drained":false}`)
	w.is.Equal(ana.After, json.RawMessage(nil))
	w.is.True(!bob.Allowed)
	w.is.Equal(bob.Reason, "needs jobs:cancel") // the reason for the rejection replaces the actor's reason
	w.is.Equal(bob.Source, "library")

	list, err = admin.AuditTrail(w.ctx(), w.Store, admin.AuditFilter{Target: "lane default"})
	w.is.NoErr(err)
	w.is.Equal(len(list), 1)
	list, err = admin.AuditTrail(w.ctx(), w.Store, admin.AuditFilter{Before: bob.ID})
	w.is.NoErr(err)
	w.is.Equal(len(list), 1) // the next page has one entry
}

func TestAuditAppendOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.is.NoErr(admin.Audit(w.ctx(), w.Store, admin.AuditEntry{Actor: "ana", Action: "queue_state.pause", Target: "queue_state"}))
	for _, sql := range []string{`update trapeze.audit set actor = 'bob'`, `delete from trapeze.audit`, `truncate trapeze.audit`} {
		_, err := w.pool.Exec(w.ctx(), sql)
		pg, ok := errors.AsType[*pgconn.PgError](err)
		w.is.True(ok && pg.Code == "42501") // 42501 (insufficient privilege) is raised even for the owner of the table
	}
}
