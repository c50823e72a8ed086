package store_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// mixed returns a change for job i. On odd jobs, it sets every field that a pending job can have; it leaves even jobs unchanged.
func mixed(i int) func(*store.NewJob) {
	return func(n *store.NewJob) {
		if i%2 == 0 {
			return
		}
		parent := n.ID - 1
		n.Lane, n.Subject, n.Args = "other", fmt.Sprint("s", i%7), json.RawMessage(`{"text": "größer \" \\ \t", "n": [1, 2.50]}`)
		n.PipelineID, n.ParentID, n.Step, n.Planned = parent, &parent, i%5, json.RawMessage(`[{"kind":"k"}]`)
		n.MaxAttempts, n.MaxCrashes, n.Submitter, n.Actor = ptr(i), ptr(3), "somebody", fmt.Sprint("actor", i%3)
		n.UniqueKey, n.UniqueWhile, n.Priority = ptr(fmt.Sprint("key", i)), ptr("active"), i%201-100
	}
}

func TestBulkMatchesStatementInsert(t *testing.T) {
	t.Parallel()
	const n = 250
	changes := make([]func(*store.NewJob), n)
	for i := range changes {
		changes[i] = mixed(i)
	}
	inserted := func(put func(w *world, list []store.NewJob) error) (first int64, all []string) {
		w := newWorld(t)
		list := w.new(changes...)
		w.is.True(store.Bulky(list))
		w.is.NoErr(put(w, list))
		const sql = `
select concat(j.id, ' ', (to_jsonb(j) - '{created_at,xid}'::text[])::text, ' ', (to_jsonb(l) - '{ready_at}'::text[])::text,
	(to_jsonb(p) - '{run_after}'::text[])::text, ' ', j.args::text, ' ', j.xid is not null and j.created_at = coalesce(l.ready_at, p.run_after), ' ',
	(select jsonb_agg(to_jsonb(e) - '{xid,at}'::text[])::text from trapeze.job_event e where e.job = j.id and e.xid = j.xid))
from trapeze.jobs j left join trapeze.live l using (id) left join trapeze.parked p using (id) order by j.id`
		all, err := store.Rows(w.ctx(), w.Store, pgx.RowTo[string], sql)
		w.is.NoErr(err)
		w.is.Equal(len(all), n)
		return list[0].ID, all
	}
	one, byStatement := inserted(func(w *world, list []store.NewJob) error {
		return second(store.EnqueueIn(w.ctx(), w.Store, w.pool, list, false))
	})
	two, byBulk := inserted(func(w *world, list []store.NewJob) error {
		done, err := store.EnqueueBulk(w.ctx(), w.Store, list)
		w.is.True(done)
		return err
	})
	if one != two {
		t.Fatalf("the databases number jobs differently: %d, %d", one, two)
	}
	for i := range byBulk {
		if byBulk[i] != byStatement[i] {
			t.Errorf("by COPY:\n%s\nby the statement:\n%s", byBulk[i], byStatement[i])
		}
	}
}

func TestBulkInsertAtomicity(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	changes := make([]func(*store.NewJob), 300)
	for i := range changes {
		changes[i] = plain
	}
	bad := map[string]func(*store.NewJob){
		"invalid JSON":            func(n *store.NewJob) { n.Args = json.RawMessage(`{"a":`) },
		"a NUL character":         func(n *store.NewJob) { n.Subject = "a\x00b" },
		"a kind that is too long": func(n *store.NewJob) { n.Kind = fmt.Sprintf("%0200d", 1) },
		"a priority out of range": func(n *store.NewJob) { n.Priority = 101 },
		"a duplicate id":          func(n *store.NewJob) { n.ID-- },
	}
	for name, spoil := range bad {
		list := w.new(changes...)
		spoil(&list[150])
		_, err := store.EnqueueBulk(w.ctx(), w.Store, list)
		if !store.Refused(err) {
			t.Errorf("%s: got error %v, want a rejection", name, err)
		}
		w.is.Equal(w.count(`select count(*) from trapeze.jobs`), 0)
		w.is.Equal(w.count(`select count(*) from trapeze.live`), 0)
	}
	list := w.new(changes...)
	_, err := store.EnqueueBulk(w.ctx(), w.Store, list)
	w.is.NoErr(err)
	w.is.Equal(w.count(`select count(*) from trapeze.live where state = 'pending' and ready_at <= now()`), 300)
	w.is.True(!store.Bulky(list[:10]))
	list[0].DelayMillis = 1
	w.is.True(!store.Bulky(list))
}
