//go:build long

package store_test

import (
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"testing"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/plantest"
)

// Finished jobs leave dead rows in the table and its indexes. PostgreSQL cannot remove them while a transaction holds a snapshot taken
// before those jobs finished.
func TestDeadRowsUnderHeldSnapshot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	snapshot, err := w.Pool().Begin(w.ctx())
	w.is.NoErr(err)
	defer func() { _ = snapshot.Rollback(w.ctx()) }()
	_, err = snapshot.Exec(w.ctx(), `set transaction isolation level repeatable read`)
	w.is.NoErr(err)
	_, err = snapshot.Exec(w.ctx(), `select from trapeze.live`)
	w.is.NoErr(err)
	workOff := func(n int) {
		changes := make([]func(*store.NewJob), n)
		for i := range changes {
			changes[i] = plain
		}
		w.put(changes...)
		claimed := w.claims(podID, n)
		w.is.Equal(len(claimed), n)
		ends := make([]store.Ending, n)
		for i, c := range claimed {
			ends[i] = ending(c)
		}
		_, err := w.Finish(w.ctx(), podID, ends)
		w.is.NoErr(err)
	}
	conn := plantest.Pinned(t, w.Pool())
	literals := map[string]string{"pod": "'" + podID + "'", "lanes": "'{default}'", "wants": "'{5}'", "kinds": "'{k}'", "isolated": "true",
		"stream": "0", "aheads": "'{0}'", "short": "'{}'", "firsts": "'{1}'"}
	pages := func(name string, ranges map[string]string) int {
		maps.Copy(literals, ranges)
		plan := plantest.Explain(t, conn, name, store.ClaimSQL.Text(), "analyze, buffers, costs off, timing off", store.ClaimSQL.InOrder(literals)...)
		found := buffers.FindStringSubmatch(plan)
		if found == nil {
			t.Fatalf("the plan of %s has no buffer counts:\n%s", name, plan)
		}
		n, err := strconv.Atoi(found[1])
		w.is.NoErr(err)
		return n
	}
	var whole, since []int
	for i, n := range []int{500, 9500} {
		workOff(n)
		whole = append(whole, pages(fmt.Sprint("claim", i), map[string]string{"lasts": "'{1}'", "from_ranks": "'{-100}'", "from_times": "'{-infinity}'", "to_ranks": "'{100}'"}))
		since = append(since, pages(fmt.Sprint("claim_from_mark", i), map[string]string{"lasts": "'{2}'", "from_ranks": "'{-100,-10}'",
			"from_times": "array['-infinity', now() + interval '1 second']", "to_ranks": "'{-11,100}'"}))
	}
	if whole[1] < 5*whole[0] || since[1] > since[0]+2 { // the index may need one more page per range when it grows by a level
		t.Errorf("behind 500 and 10,000 dead rows, a claim reads %d pages, and %d from a mark on", whole, since)
	}
}

var buffers = regexp.MustCompile(`Buffers: shared hit=(\d+)`)
