package e2e

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// stores maps a database URL to the store that tests use to poll that database.
var stores sync.Map

// store returns a store for polling the database.
func (d database) store() *store.Store {
	d.t.Helper()
	if s, ok := stores.Load(d.url); ok {
		return s.(*store.Store)
	}
	s, err := store.New(d.t.Context(), pgtest.Connect(d.t, d.url), store.Options{Connections: 1})
	is.New(d.t).NoErr(err)
	stores.Store(d.url, s)
	d.t.Cleanup(func() { stores.Delete(d.url); s.Close() })
	return s
}

// until waits until a job meets a condition, and returns the job. It polls with queries, because running a command for each poll would keep
// a CPU busy.
func (d database) until(id, what string, wanted func(job.JobRow) bool) (j job.JobRow) {
	d.t.Helper()
	number, err := strconv.ParseInt(id, 10, 64)
	is.New(d.t).NoErr(err)
	s := d.store()
	pgtest.Wait(d.t, "job "+id+" "+what, func() bool {
		var err error
		j, err = view.Job(d.t.Context(), s, number)
		return err == nil && wanted(j)
	})
	return j
}

// running submits sleeping jobs, each twice as long as the one before, until one of them is seen running, and returns its ID. On a slow
// machine, a short job may end before it is seen running.
func (d database) running(sleep time.Duration) (id string) {
	d.t.Helper()
	for started := false; !started; sleep *= 2 {
		id = d.enqueue("demo.sleep", "--args", fmt.Sprintf(`{"ms":%d}`, sleep.Milliseconds()))
		started = d.until(id, "has started", func(j job.JobRow) bool { return j.StartedAt != nil }).State == job.Running
	}
	return id
}

// inState waits until a job has reached a state, and returns the job.
func (d database) inState(id string, want job.State) job.JobRow {
	d.t.Helper()
	return d.until(id, "is "+string(want), func(j job.JobRow) bool { return j.State == want })
}
