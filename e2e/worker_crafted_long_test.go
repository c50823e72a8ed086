//go:build long

package e2e

import (
	"syscall"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/remote/remotepb"
)

// F71: heartbeats and reports need neither an open stream nor the pod that serves the stream.
func TestRemoteLeaseRenewedElsewhere(t *testing.T) {
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	first, second := puppetPod(t, db), puppetPod(t, db)
	w := newPuppet(t, first, puppetsToken)
	is.NoErr(w.opens(1, "demo.echo"))
	w.keepsBeating()
	id := db.enqueue("demo.echo")
	a := w.takes()
	w.talkTo(second)
	first.signal(syscall.SIGKILL)
	pool := pgtest.Connect(t, db.url)
	pgtest.Wait(t, "more than a lease has passed", func() (over bool) {
		is.NoErr(pool.QueryRow(t.Context(), `select now() - claimed_at > make_interval(secs => $2) from trapeze.live where id = $1`, id, 4*slow).Scan(&over))
		return over
	})
	status, err := w.reports(a, `"through the other"`)
	is.NoErr(err)
	is.Equal(status, remotepb.ReportResultResponse_STATUS_ACCEPTED)
	status, err = w.reports(a, `"through the other"`)
	is.NoErr(err)
	is.Equal(status, remotepb.ReportResultResponse_STATUS_DUPLICATE)
	j := db.job(id)
	is.Equal(j.Fence, int64(1))
	is.Equal(j.Crashes, 0)
}
