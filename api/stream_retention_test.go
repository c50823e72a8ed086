package api_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// weeksPass makes all finished jobs and all events twenty days older.
func weeksPass(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	day := time.Now().UTC().AddDate(0, 0, -20)
	var sql string
	for _, parent := range []string{"done_succeeded", "done_failed", "done_cancelled", "job_events"} {
		name := parent + day.Format("_20060102")
		sql += fmt.Sprintf(`create table trapeze.%s (like trapeze.%s including all);
			alter table trapeze.%s attach partition trapeze.%s for values from ('%s 00:00+00') to ('%s 00:00+00');`,
			name, parent, parent, name, day.Format(time.DateOnly), day.AddDate(0, 0, 1).Format(time.DateOnly))
	}
	noon := day.Format(time.DateOnly) + " 12:00+00"
	sql += fmt.Sprintf(`update trapeze.done set finished_at = '%s'; update trapeze.job_events set at = '%s'`, noon, noon)
	_, err := pool.Exec(t.Context(), sql)
	for refused := (*pgconn.PgError)(nil); errors.As(err, &refused) && refused.Code == "40P01"; { // a read has locked the same tables in another order
		_, err = pool.Exec(t.Context(), sql)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Retention keeps data that unfinished jobs still need, and streams that are open continue to the end. A client that reconnects with a
// pruned cursor is reset.
func TestRetentionWithOpenStreams(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	h := newHostOn(t, pool, api.Options{}, func(r *runner.Runner) {
		runner.HandleRaw(r, "both", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			return runner.FanOut(runner.Raw{Name: "echo"}, runner.Raw{Name: "hold"}).Join(runner.Raw{Name: "echo"}), nil
		})
	})
	over := h.submit(`{"kind":"echo"}`)
	h.until(over, job.Succeeded)
	long := h.submit(`{"kind":"wait"}`)
	h.until(long, job.Running)
	chain := h.submit(`{"kind":"echo","args":{"n":1},"chain":[{"kind":"hold"}]}`)
	h.until(chain, job.Succeeded)
	joined := h.submit(`{"kind":"both"}`)
	h.until(joined, job.Waiting)
	deferred := h.submit(`{"kind":"defer"}`)
	h.until(deferred, job.Waiting)
	token := <-h.tokens
	number, err := strconv.ParseInt(deferred, 10, 64)
	is.NoErr(err)
	is.NoErr(h.Complete(t.Context(), number, token, 1, runner.Part("a")))
	last := func(id string) (tail string) { // the running hold job: the last step of a pipeline, or a child
		pgtest.Wait(t, "a job of kind hold runs", func() bool {
			return pool.QueryRow(t.Context(), `select id::text from trapeze.job where kind = 'hold' and state = 'running' and pipeline_id = $1`, id).Scan(&tail) == nil
		})
		return tail
	}
	step, branch := last(chain), last(joined)

	ended := h.watch("/jobs/"+over+"/stream").until(t, "job.succeeded")
	all := h.watch("/events/stream?after=0").until(t, "job.enqueued")
	watched := h.watch("/jobs/" + long + "/stream")
	began := watched.until(t, "job.claimed")
	pipelines := map[string]*stream{}
	for _, id := range []string{chain, joined, deferred} {
		pipelines[id] = h.watch("/pipelines/" + id + "/stream")
		pipelines[id].until(t, "job.claimed")
	}

	weeksPass(t, pool)
	is.NoErr(h.Maintain(t.Context()))
	var kept []string
	is.NoErr(pool.QueryRow(t.Context(), `select array_agg(kind order by kind) from trapeze.job where state = 'succeeded'`).Scan(&kept))
	is.Equal(kept, []string{"echo", "echo"})                               // the parent of the running step, and the finished child that has not been joined yet
	is.Equal(h.send("GET", "/jobs/"+over, "").status, http.StatusNotFound) // jobs that are no longer needed are deleted
	is.Equal(h.send("GET", "/jobs/"+chain, "").status, http.StatusOK)
	var events int
	is.NoErr(pool.QueryRow(t.Context(), `select count(*) from trapeze.job_events`).Scan(&events))
	is.Equal(events, 0) // all events are deleted

	again := h.send("GET", "/jobs/"+over+"/stream", "", "Last-Event-ID", ended[len(ended)-1].id)
	is.Equal(again.status, http.StatusNotFound) // the job no longer exists
	for path, cursor := range map[string]string{"/jobs/" + long: began[1].id, "/events": all[len(all)-1].id} {
		back := h.watch(path+"/stream", "Last-Event-ID", cursor)
		is.Equal(back.must(t).event, "reset") // the events after the cursor were deleted
		is.Equal(back.must(t).event, "snapshot")
		back.leave()
	}

	is.Equal(h.send("POST", "/jobs/"+long+"/cancel", "").status, http.StatusAccepted)
	rest := watched.rest(t)
	is.Equal(rest[len(rest)-1].data, `{"state":"cancelled"}`) // an open stream continues
	close(h.held(step))
	close(h.held(branch))
	is.NoErr(h.Complete(t.Context(), number, token, 2, runner.Part("b")))
	for _, s := range pipelines {
		rest := s.rest(t)
		is.Equal(rest[len(rest)-1].data, `{"status":"succeeded"}`)
	}
}
