//go:build long

package handlers_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// If a pod stops in the middle of an ingest, another pod continues the job from its checkpoint.
func TestIngestResumesFromCheckpoint(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	is.NoErr(handlers.Setup(t.Context(), pool, handlers.Options{}))
	slow := newPod(t, pool, handlers.Options{BatchPause: time.Minute})
	made, err := slow.Enqueue(t.Context(), handlers.Ingest{Year: 2024}, runner.Subject("travel/2024"))
	is.NoErr(err)
	pgtest.Wait(t, "one batch is written", func() bool { return slow.count(is, "select count(*) from co2.activities") == 1000 })
	slow.stop()

	steps := newPod(t, pool, handlers.Options{}).wait(made.ID)
	is.Equal(len(steps), 3)
	is.True(steps[0].Fence > 1) // the job was claimed again
	got := decode[handlers.Ingested](t, steps[0])
	is.Equal(got.Rows, int64(20000)) // the rows before the checkpoint are counted only once
	_, _, sum := reference(t)
	is.True(equal(sum, decode[handlers.Totalled](t, steps[2]).KgCO2e.String())) // equal to the last digit
	// Each batch was written by only one transaction, so no row was rewritten after the stop.
	is.Equal(slow.count(is, "select count(distinct xmin::text) from co2.activities"), int64(20))
}

func TestLostConnectionsAreSurvived(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	is.NoErr(handlers.Setup(t.Context(), pool, handlers.Options{}))
	b := newPod(t, pool, handlers.Options{BatchPause: 50 * time.Millisecond})
	made, err := b.Enqueue(t.Context(), handlers.Ingest{Year: 2024})
	is.NoErr(err)
	admin, err := pgx.Connect(t.Context(), pool.Config().ConnString())
	is.NoErr(err)
	defer admin.Close(t.Context())
	for _, rows := range []int{2000, 7000, 15000} {
		pgtest.Wait(t, "the ingest continues", func() bool {
			var n int
			is.NoErr(admin.QueryRow(t.Context(), "select count(*) from co2.activities").Scan(&n))
			return n >= rows
		})
		_, err := admin.Exec(t.Context(), `select pg_terminate_backend(pid) from pg_stat_activity
			where datname = current_database() and pid <> pg_backend_pid()`)
		is.NoErr(err)
	}
	pgtest.Wait(t, "the pipeline ends", func() bool {
		var done bool
		is.NoErr(admin.QueryRow(t.Context(), `select count(*) = 1 from trapeze.pipeline where id = $1 and status = 'succeeded'`, made.ID).Scan(&done))
		return done
	})
	_, _, sum := reference(t)
	is.True(equal(sum, decode[handlers.Totalled](t, b.wait(made.ID)[2]).KgCO2e.String())) // nothing was lost or duplicated
}
