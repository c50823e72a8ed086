//go:build long

package store_test

import (
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/view"
)

func TestStatisticsBeyondRowLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`insert into trapeze.stats (at, lane, kind, state, jobs)
		select now() - g % 1000 * interval '1 minute', 'default', 'k' || g, 'succeeded', 1 from generate_series(1, 100001) g`)
	s := w.stats(24*time.Hour, view.ByLane)
	w.is.Equal(s.Total.Finished, int64(100_000))
	w.is.True(s.ReadSince != nil && time.Since(*s.ReadSince) > 16*time.Hour) // the oldest of the last 1,000 minutes
	w.is.True(w.stats(time.Hour, view.ByLane).ReadSince == nil)
}
