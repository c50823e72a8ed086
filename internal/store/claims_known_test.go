package store_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/store/plantest"
	"github.com/trapeze-run/trapeze/job"
)

func TestClaimsMissingFromTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	w.put(plain, plain, plain, plain)
	held, others, stopped, ended := leaseOf(a, w.claimOne(a)), leaseOf(b, w.claimOne(b)), leaseOf(a, w.claimOne(a)), w.claimOne(a)
	_, err := admin.Cancel(w.ctx(), w.Store, stopped.JobID, 0, true, "ann", func(job.Lease) {})
	w.is.NoErr(err)
	_, ok := w.end(a, ending(ended))
	w.is.True(ok)
	gone := job.Lease{JobID: 1 << 40, Fence: 1, Pod: a}
	older := held
	older.Fence = 7
	missing, err := store.MissingClaims(w.ctx(), w.Store, a, []job.Lease{held, others, stopped, leaseOf(a, ended), older, gone})
	w.is.NoErr(err)
	want := []store.MissingClaim{{ID: others.JobID, Fence: others.Fence}, {ID: stopped.JobID, Fence: stopped.Fence, Reason: job.ReasonForceCancelled}, {ID: ended.ID, Fence: ended.Fence},
		{ID: older.JobID, Fence: 7}, {ID: gone.JobID, Fence: gone.Fence, Deleted: true}}
	slices.SortFunc(missing, func(a, b store.MissingClaim) int {
		return slices.Index(want, a) - slices.Index(want, b)
	})
	w.is.Equal(missing, want)
}

func TestHeldClaimPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.pod("a"), w.pod("b")
	for range 12 {
		w.put(plain)
	}
	var of = map[string][]job.Lease{}
	for _, podID := range []string{a, b, "", a, b, a, ""} {
		if podID != "" {
			of[podID] = append(of[podID], leaseOf(podID, w.claimOne(podID)))
		}
	}
	young := leaseOf(a, w.claimOne(a))
	w.exec(`update trapeze.live set claimed_at = now() - interval '1 minute' where state = 'running' and id <> $1`, young.JobID)
	walk := func(podIDs ...string) (found []job.Lease, pages int) {
		for after := int64(0); ; {
			page, err := store.ReadHeldPage(w.ctx(), w.Store, podIDs, after, 5, 30*time.Second)
			w.is.NoErr(err)
			found, after = append(found, page.Claims...), page.Last
			if pages++; !page.Full {
				return found, pages
			}
		}
	}
	found, pages := walk(a)
	w.is.Equal(found, of[a]) // the most recent claim is too young to be listed
	w.is.Equal(pages, 3)
	found, _ = walk(a, b)
	w.is.Equal(len(found), len(of[a])+len(of[b]))
}

func TestClaimComparisonWithLongBacklog(t *testing.T) {
	t.Parallel()
	touches := func(n int) map[string]plantest.Touched {
		w := newWorld(t)
		w.exec(`select setval('trapeze.job_ids', $1)`, 4*n+1)
		podID := w.pod("a")
		w.put(plain)
		c := w.claimOne(podID)
		w.seedPending(n)
		w.exec(`vacuum analyze trapeze.live`)
		conn := plantest.Pinned(t, w.Pool())
		by := map[string]string{"pod": "'" + podID + "'", "ids": fmt.Sprintf("'{%d}'", c.ID), "fences": fmt.Sprintf("'{%d}'", c.Fence),
			"pods": "'{" + podID + "}'", "after": "0", "limit": "300", "age": "0"}
		found := map[string]plantest.Touched{}
		for name, st := range map[string]*store.Statement{"missing_claims": store.MissingClaimsSQL, "held_page": store.HeldPageSQL} {
			found[name] = plantest.Reads(t, conn, name, st.Text(), st.InOrder(by)...)
		}
		return found
	}
	plantest.LongAsShort(t, touches(400), touches(20_000))
}
