package store_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/migrate"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

func TestStoreInCustomSchema(t *testing.T) {
	t.Parallel()
	url := pgtest.EmptyURL(t)
	if err := migrate.Up(t.Context(), url, "other_home"); err != nil {
		t.Fatal(err)
	}
	w := newWorldOn(t, pgtest.Connect(t, url), store.Options{Schema: "other_home"})
	w.is.Equal(w.Schema(), "other_home")
	w.useHotPath()
	n, err := upkeep.Forget(w.ctx(), w.Store, "succeeded", 0, unpaced)
	w.is.NoErr(err)
	w.is.Equal(n, 0)
}

func TestStoreBehindTransactionPooler(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	w := newWorldOn(t, pgtest.Connect(t, url), store.Options{BehindPooler: true})
	for name := range store.Pins {
		w.is.Equal(w.Pool().Config().ConnConfig.RuntimeParams[name], "") // a pooler would reject the settings or leak them to other clients
	}
	w.useHotPath()
	var mode string
	var prepared int
	w.is.NoErr(w.Pool().QueryRow(w.ctx(), `select current_setting('plan_cache_mode'), count(*) from pg_prepared_statements`).Scan(&mode, &prepared))
	w.is.Equal(mode, "auto") // the pins end with the round trip
	w.is.Equal(prepared, 0)  // nothing is prepared, because prepared statements would stay on a server connection that other clients also use
	got, err := store.Rows(w.ctx(), w.Store, pgx.RowTo[string], `select current_setting('plan_cache_mode')`)
	w.is.NoErr(err)
	w.is.Equal(got, []string{"force_generic_plan"}) // the pins apply within the round trip
	_, err = store.Rows(w.ctx(), w.Store, pgx.RowTo[int], `select 1 / 0`)
	w.is.True(store.Refused(err)) // the statement's error is returned
}

// useHotPath runs a few jobs through every statement of the hot path.
func (w *world) useHotPath() {
	w.t.Helper()
	a, b := w.pod("a"), w.pod("b")
	born := w.new(about("s"), plain, func(n *store.NewJob) { n.DelayMillis = 1 })
	born[0].Starts = true
	placed, err := w.Enqueue(w.ctx(), a, born)
	w.is.NoErr(err)
	w.is.Equal(placed, map[int64]store.Place{born[0].ID: store.PlacedRunning, born[1].ID: store.PlacedPending, born[2].ID: store.PlacedParked})
	parent := &store.Claimed{ID: born[0].ID, Fence: 1, Definition: store.Definition{PipelineID: born[0].ID, Subject: "s"}}
	c := w.claimOne(a)
	w.is.Equal(c.ID, born[1].ID)
	child := w.new(then(parent))[0]
	end, ok := w.end(a, endingWith(parent, child))
	w.is.True(ok && end.ChildRunning)
	w.is.NoErr(w.Progress(w.ctx(), leaseOf(a, c), job.Progress{Done: ptr(int64(1))}))
	w.is.NoErr(w.Emit(w.ctx(), leaseOf(a, c), store.Emission{Event: "my.event", Message: "hello"}))
	_, err = w.Snooze(w.ctx(), leaseOf(a, c), 1, 0, store.Retry{Message: "not yet"})
	w.is.NoErr(err)
	pgtest.Wait(w.t, "both delays to be over", func() bool {
		_, _, err := w.Promote(w.ctx(), 10)
		w.is.NoErr(err)
		return w.count(`select count(*) from trapeze.parked`) == 0
	})
	beat, err := w.Heartbeat(w.ctx(), a, lease, false)
	w.is.NoErr(err)
	w.is.True(beat.Open)
	w.is.Equal(len(beat.Lanes), 1)
	pending, _ := w.dies(a, b)
	w.is.Equal(pending, 1)
	claims := w.claims(b, 5)
	w.is.Equal(len(claims), 3)
	found, err := w.ClaimOutcomes(w.ctx(), b, []job.Lease{leaseOf(b, claims[0])}, []int64{0}, false)
	w.is.NoErr(err)
	w.is.True(found[claims[0].ID].Held)
	_, err = admin.Cancel(w.ctx(), w.Store, claims[0].ID, 0, true, "ann", ignoreLease)
	w.is.NoErr(err)
	back, err := w.HandBack(w.ctx(), b, []job.Lease{leaseOf(b, claims[1])}, "why")
	w.is.NoErr(err)
	w.is.Equal(len(back), 1)
	_, ok = w.end(b, ending(claims[2]))
	w.is.True(ok)
	w.end(b, ending(w.claimOne(b)))
	page, err := view.Jobs(w.ctx(), w.Store, job.Filter{Limit: 3})
	w.is.NoErr(err)
	w.is.Equal(len(page.Jobs), 3)
	page, err = view.Jobs(w.ctx(), w.Store, job.Filter{Limit: 3, Cursor: page.Cursor})
	w.is.NoErr(err)
	w.is.Equal(len(page.Jobs), 1)
	w.is.NoErr(view.Snapshot(context.Background(), w.Store, func(tx pgx.Tx) error {
		n := 0
		if err := view.ExportJobs(context.Background(), w.Store, tx, func(job.JobRow) error { n++; return nil }); err != nil {
			return err
		}
		w.is.Equal(n, 4)
		return view.ExportEvents(context.Background(), w.Store, tx, func(job.Event) error { return nil })
	}))
	_, err = upkeep.EnsurePartitions(w.ctx(), w.Store, 7)
	w.is.NoErr(err)
}
