//go:build long

package torture

import (
	"path/filepath"
	"testing"

	"github.com/matryer/is"
)

// After a missed heartbeat, a pod checks its listening session, so the session's latest statement is no longer LISTEN.
func TestFleetRestAfterListenerCheck(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	w, err := NewWorld(t.Context(), Options{Seed: 2, Pods: 2, Workers: -1, Dir: filepath.Join(t.TempDir(), "2")})
	is.NoErr(err)
	defer func() { is.NoErr(w.Close()) }()
	is.NoErr(w.startPods(t.Context()))
	const listens = `usename like 'pod%' and application_name = 'trapeze-listen'`
	is.True(w.ask(t.Context(), restWithin, `select count(*) = 2 from pg_stat_activity where `+listens))
	for _, p := range w.Pods() {
		p.Proxy().Refuse()
	}
	const others = `select count(pg_terminate_backend(pid)) > 0 from pg_stat_activity where usename like 'pod%' and not (` + listens + `)`
	w.ask(t.Context(), restWithin, others)
	is.True(w.ask(t.Context(), restWithin, `select not exists (select from pg_stat_activity where `+listens+` and query ilike 'listen %')`)) // every listener was checked
	for _, p := range w.Pods() {
		p.Proxy().Pass()
	}

	crowd := NewCrowd(w)
	id, struck, err := crowd.unheard(t.Context(), 0)
	is.NoErr(err)
	is.Equal(struck, 2)
	is.True(w.ask(t.Context(), wakeWithin, endedSQL, id))
	for n := range 2 { // first a job that shares its commit with others, and then a chain step
		id, struck, err := crowd.cancelled(t.Context(), n)
		is.NoErr(err)
		is.Equal(struck, 1)
		is.True(w.ask(t.Context(), wakeWithin, endedSQL, id))
		is.True(w.ask(t.Context(), wakeWithin, `select state = 'cancelled' from trapeze.job where id = $1`, id))
	}
	for n := range 2 * len(replies) { // twice for each reply; the submissions go through different pods
		id, struck, err := crowd.unanswered(t.Context(), n)
		is.NoErr(err)
		is.True(struck > 0)
		is.True(w.ask(t.Context(), wakeWithin, endedSQL, id))
	}
}
