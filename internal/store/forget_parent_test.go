package store_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/upkeep"
)

// A next step can still read its parent's result even if it waits for longer than the parent's retention.
func TestParentResultRetention(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.pod("a")
	w.put(plain)
	parent := w.claimOne(a)
	child := w.new(then(parent, func(n *store.NewJob) { n.Starts, n.DelayMillis = false, 72*3600*1000 }))[0]
	e := endingWith(parent, child)
	e.Result = json.RawMessage(`{"rows": 7}`)
	w.end(a, e)
	day := time.Now().UTC().AddDate(0, 0, -1)
	w.exec(`update trapeze.done set finished_at = $1`, day)
	_, err := upkeep.Forget(w.ctx(), w.Store, "succeeded", 0, unpaced)
	w.is.NoErr(err)
	_, err = w.Result(w.ctx(), parent.ID)
	w.is.NoErr(err)
}
