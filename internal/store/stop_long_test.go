//go:build long

package store_test

import (
	"context"
	"errors"
	"testing"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// A stop waits for a priority change, which reinserts the row, while a claim takes the new row. The stop must also end the run that the
// claim started.
func TestStopDuringPriorityChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	podID := w.pod("a")
	for i := range 150 {
		id := w.put(about("s"))[0]
		niced := async(func() (int, error) {
			for p := 0; ; p++ {
				if err := admin.SetPriority(context.Background(), w.Store, id, p%100, false, "ann"); err != nil {
					return p, err
				}
			}
		})
		claimed := async(func() (store.Claims, error) {
			for {
				found, err := w.Claim(context.Background(), podID, []store.Want{{Lane: "default", N: 1}}, []string{"k"}, nil, true)
				if err != nil || len(found.Jobs) > 0 || w.count(`select count(*) from trapeze.live`) == 0 {
					return found, err
				}
			}
		})
		_, err := admin.Cancel(w.ctx(), w.Store, id, 0, true, "bob", ignoreLease)
		w.is.NoErr(err)
		_, err = niced()
		w.is.True(errors.Is(err, job.ErrNotQueued) || errors.Is(err, job.ErrAlreadyTerminal))
		_, err = claimed()
		w.is.NoErr(err)
		if n := w.count(`select count(*) from trapeze.subjects where state = 'held'`); n > 0 {
			t.Fatalf("round %d: the subject of a stopped job is still taken", i)
		}
	}
}
