//go:build long

package e2e

import (
	"fmt"
	"io"
	"log/slog"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// serveFleet starts processes with four slots each. The narrow lane allows three running jobs across all processes.
func serveFleet(t *testing.T, n int) *fleet {
	t.Helper()
	f := &fleet{database: database{t, pgtest.URL(t)}, is: is.New(t)}
	f.pool = pgtest.Connect(t, f.url)
	for i := range n {
		f.pods = append(f.pods, serve(t, f.url, []string{fmt.Sprint("TRAPEZE_POD_NAME=web-", i), "TRAPEZE_SLOTS=4", "TRAPEZE_LEASE_DURATION=2s",
			"TRAPEZE_HEARTBEAT_INTERVAL=500ms", "TRAPEZE_LANES=narrow=3:demo.sleep"}))
	}
	return f
}

// heard waits until every open pod has the current settings, which arrive with the reply to a heartbeat. It waits for three heartbeats,
// because the first may already have been in flight when the settings changed, and only the third is certain to follow a reply with the new
// settings.
func (d database) heard() {
	d.t.Helper()
	pool := d.store().Pool()
	for range 3 {
		before := pgtest.QueryOne[time.Time](d.t, pool, `select coalesce(max(lease_until), now()) from trapeze.pods where closed_at is null`)
		pgtest.Wait(d.t, "a heartbeat of every pod", func() bool {
			return pgtest.QueryOne[bool](d.t, pool, `select not exists (select from trapeze.pods where closed_at is null and lease_until <= $1)`, before)
		})
	}
}

// settles is the period without job starts after which the test assumes that every process has received a change.
const settles = 300 * time.Millisecond

// A setting changed through one process applies to all processes, which share the work.
func TestSeveralProcessesFollowTheOperator(t *testing.T) {
	t.Parallel()
	f := serveFleet(t, 3)
	f.submit(500 * slow)
	pgtest.Wait(t, "the lane is full", func() bool { return f.running() == 3 })
	f.is.Equal(f.most(1500*time.Millisecond), 3) // the limit across all processes
	f.is.Equal(f.count(`select count(distinct pod) from trapeze.job_event where event = 'job.succeeded'`), 3)

	f.ok("lane", "set", "narrow", "slots=1")
	f.heard()
	pgtest.Wait(t, "jobs beyond the limit and pending claims have ended", func() bool { return f.most(settles) <= 1 })
	pgtest.Wait(t, "one pod uses the slot", func() bool { return f.running() == 1 })
	f.is.Equal(f.most(time.Second), 1)
	f.ok("lane", "set", "narrow", "slots=0")
	f.heard()
	pgtest.Wait(t, "running jobs and pending claims have ended", func() bool { return f.most(settles) == 0 })
	f.is.Equal(f.most(500*time.Millisecond), 0) // this period includes a poll
	f.is.True(f.waiting() > 0)
	f.ok("lane", "set", "narrow", "slots=3")
	pgtest.Wait(t, "the lane is full again", func() bool { return f.running() == 3 })

	f.ok("drain", "narrow", "--wait", "20s")
	f.is.Equal(f.running(), 0)
	f.submit(1)
	f.is.Equal(f.most(500*time.Millisecond), 0)
	f.ok("freeze", "--wait", "20s")
	f.ok("undrain", "narrow")
	f.is.Equal(f.most(500*time.Millisecond), 0) // the queue is still frozen
	f.ok("unfreeze")
	pgtest.Wait(t, "the lane is full again", func() bool { return f.running() == 3 })

	f.ok("drain", "--pod", "web-1", "--wait", "20s")
	on := func(name string) int {
		return f.count(`select count(*) from trapeze.live l join trapeze.pods p on p.id = l.pod where p.name = $1`, name)
	}
	f.throughout(500*time.Millisecond, func() { f.is.Equal(on("web-1"), 0) })
	pgtest.Wait(t, "the other pods use its slots", func() bool { return f.running() == 3 })
	f.pods[2].signal(syscall.SIGKILL)
	f.is.True(f.most(4*time.Second) <= 3) // the limit holds even while the killed process's slots are recovered
	f.ok("undrain", "--pod", "web-1")
	pgtest.Wait(t, "every job has ended", func() bool { return f.count(`select count(*) from trapeze.live`) == 0 })
	f.is.Equal(f.count(`select count(*) from trapeze.done where state <> 'succeeded'`), 0)
	f.is.Equal(f.count(`select count(*) from trapeze.done`), 500*slow+1)
	f.is.Equal(f.count(`select granted from trapeze.lanes where name = 'narrow'`), f.count(`select coalesce(sum(slots), 0) from trapeze.slot_grants where lane = 'narrow'`))
	f.is.Equal(f.count(`select count(*) from trapeze.audit where action <> 'lane.set' or actor <> 'system'`), 9) // one entry per command
	f.mostAtOnce(3)
}

// mostAtOnce checks the limit against the history, because sampling is not reliable. It computes how many of the lane's claims were open at
// any one time. The killed process's claims end when they are recovered.
func (f *fleet) mostAtOnce(limit int) {
	f.t.Helper()
	n := f.count(`
with turns as (
	select e.xid, e.job, e.event_no, case when e.to_state = 'running' and e.from_state = 'pending' then 1 else -1 end as by
	from trapeze.job_event e
	where e.to_state = 'running' and e.from_state = 'pending' or e.from_state = 'running' and e.to_state <> 'running'
)
select max(open) from (select sum(by) over (order by xid, by) as open from turns) t`)
	f.is.True(n <= limit)
}

func (f *fleet) running() int {
	return f.count(`select count(*) from trapeze.live where lane = 'narrow' and state = 'running'`)
}

func (f *fleet) waiting() int {
	return f.count(`select count(*) from trapeze.live where lane = 'narrow' and state = 'pending'`)
}

// submit submits jobs from outside the fleet.
func (f *fleet) submit(n int) {
	f.t.Helper()
	r, err := runner.New(f.pool, runner.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	f.is.NoErr(err)
	defer r.Close()
	list := make([]job.Args, n)
	for i := range list {
		list[i] = runner.Raw{Name: "demo.sleep", JSON: []byte(`{"ms":40}`)}
	}
	_, err = r.EnqueueMany(f.t.Context(), list, runner.AllowUnregistered())
	f.is.NoErr(err)
	f.is.NoErr(inside.Of(r).Store.Notify(f.t.Context(), f.pool))
}

// most returns the maximum number of running jobs observed within the given time.
func (f *fleet) most(d time.Duration) (most int) {
	f.t.Helper()
	f.throughout(d, func() { most = max(most, f.running()) })
	return most
}

// throughout calls look repeatedly for the given duration.
func (f *fleet) throughout(d time.Duration, look func()) {
	f.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for until := time.Now().Add(d); time.Now().Before(until); <-tick.C {
		look()
	}
}

// fleet is a set of processes that share a database, with helpers for tests.
type fleet struct {
	database
	is   *is.I
	pool *pgxpool.Pool
	pods []*pod
}

func (f *fleet) count(sql string, args ...any) int {
	f.t.Helper()
	return pgtest.QueryOne[int](f.t, f.pool, sql, args...)
}
