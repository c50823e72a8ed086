//go:build long

package store_test

import (
	"slices"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

func TestListPageAtScanLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.seedEnded(3000, 20)
	w.exec(`update trapeze.jobs set created_at = (select max(created_at) from trapeze.jobs) where id between 100 and 300`) // more jobs than fit in one batch have the same creation time
	w.exec(`update trapeze.jobs set kind = 'seldom', subject = 'moon' where id % 700 = 9`)
	for name, one := range map[string]struct {
		f     job.Filter
		where string
	}{
		"kind":      {job.Filter{Kind: "seldom"}, `kind = 'seldom'`},
		"subject":   {job.Filter{Subject: "moon"}, `subject = 'moon'`},
		"nothing":   {job.Filter{Kind: "none"}, `false`},
		"lane":      {job.Filter{Lane: "nowhere"}, `false`},
		"succeeded": {job.Filter{Kind: "seldom", States: []job.State{job.Succeeded}}, `kind = 'seldom' and state = 'succeeded'`},
		"owner":     {job.Filter{Owner: "ana", Kind: "seldom"}, `kind = 'seldom' and submitter = 'ana'`},
		"gone":      {job.Filter{Parent: 1 << 40}, `false`},
		"since":     {job.Filter{Kind: "seldom", Since: time.Now().Add(-50 * time.Hour)}, `kind = 'seldom' and created_at >= now() - interval '50 hours'`},
		"all":       {job.Filter{Limit: 100}, `true`},
	} {
		one.f.Limit = max(one.f.Limit, 2)
		want := w.truth(one.where)
		for _, lookFor := range []time.Duration{0, time.Hour} {
			w.SearchFor = lookFor
			got, early := w.paged(one.f)
			if !slices.Equal(got, want) {
				t.Errorf("%s, looking for %s: %v, want %v", name, lookFor, got, want)
			}
			w.is.Equal(early > 0, lookFor == 0 && name != "all") // a page ends early only if its search time is limited
		}
	}
}
