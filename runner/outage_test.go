package runner_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// A pod that has just started has not seen an outage, so it immediately recovers the jobs of pods that died long ago.
func TestAFreshPodSparesNobody(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	dead := newRunner(t, pool, runner.Options{}, nil)
	const pods, each = 3, 5
	var ids []int64
	for n := range pods {
		podID := fmt.Sprintf("00000000-0000-4000-8000-%012d", n)
		exec(t, pool, `insert into trapeze.pods (id, name, kinds, slots, lease_until) values ($1, 'dead', '{k}', 10, now() - interval '10 minutes')`, podID)
		for range each {
			ids = append(ids, enqueue(t, dead, rawArgs("k"), runner.AllowUnregistered()))
		}
		exec(t, pool, `update trapeze.live set state = 'running', pod = $1, fence = 1, attempt = 1, claimed_at = now() - interval '11 minutes'
			where state = 'pending'`, podID)
	}
	began := time.Now()
	for _, name := range []string{"fresh-1", "fresh-2"} {
		start(t, pool, runner.Options{PodName: name, HeartbeatInterval: 2 * time.Second}, map[string]handler{"k": succeed}) // with default options
	}
	for _, id := range ids {
		pgtest.WaitFor(t, time.Minute, "it has ended", func() bool { return get(t, dead, id).State == job.Succeeded })
	}
	is.True(time.Since(began) < 10*time.Second) // all jobs are recovered quickly
}

// listens is a log handler that signals when a given message is logged.
type listens struct {
	slog.Handler
	message string
	heard   chan struct{}
}

func (l listens) Enabled(context.Context, slog.Level) bool { return true }

func (l listens) Handle(_ context.Context, r slog.Record) error {
	if r.Message == l.message {
		select {
		case l.heard <- struct{}{}:
		default:
		}
	}
	return nil
}

func (l listens) WithAttrs([]slog.Attr) slog.Handler { return l }

// A proxy may still lead to the former primary for a while. If a heartbeat fails there, the pod must not wait until the next one is due.
func TestFailedHeartbeatSentAgain(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	proxy, pool := cable(t, url)
	o := named("a")
	o.HeartbeatInterval, o.LeaseDuration = time.Hour, 3*time.Hour
	failed := make(chan struct{}, 1)
	o.Logger = slog.New(listens{slog.DiscardHandler, "heartbeat failed", failed})
	r := start(t, pool, o, map[string]handler{"k": succeed})
	p := inside.Of(r).Pod
	proxy.Refuse()
	proxy.Reset()
	p.ReadSettings()
	<-failed
	before := time.Now()
	proxy.Pass()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	p.Following.AppliedSince(ctx, before, func() {}) // without requesting a heartbeat
	if ctx.Err() != nil {
		t.Error("no heartbeat was sent after a failed one")
	}
}

// lapsed inserts a closed pod with a running job of kind k for each of the returned ids.
func lapsed(t *testing.T, pool *pgxpool.Pool, r *runner.Runner, jobs int) (ids []int64) {
	t.Helper()
	const podID = "00000000-0000-4000-8000-000000000001"
	exec(t, pool, `insert into trapeze.pods (id, name, kinds, slots, lease_until, closed_at, closed) values ($1, 'dead', '{k}', 10, now(), now(), 'lapsed')`, podID)
	for range jobs {
		ids = append(ids, enqueue(t, r, rawArgs("k"), runner.AllowUnregistered()))
	}
	exec(t, pool, `update trapeze.live set state = 'running', pod = $1, fence = 1, attempt = 1, claimed_at = now()`, podID)
	return ids
}

// A recovery skips jobs whose rows are locked. A second recovery follows it, without waiting for a heartbeat or a poll.
func TestRecoveryReturnsToLockedJobs(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	ids := lapsed(t, pool, newRunner(t, pool, runner.Options{}, nil), 2)
	tx, err := pool.Begin(t.Context())
	is.NoErr(err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = tx.Exec(t.Context(), `select from trapeze.live where id = $1 for update`, ids[0])
	is.NoErr(err)
	r := start(t, pool, silent, map[string]handler{"k": succeed})
	p := inside.Of(r).Pod
	for range 2 { // a pod may recover others' jobs after its second heartbeat
		is.True(p.BeatOnce(t.Context(), true))
	}
	p.Wake()
	is.Equal(waitEnded(t, r, ids[1]).State, job.Succeeded)
	is.NoErr(tx.Rollback(t.Context()))
	began := time.Now()
	is.Equal(waitEnded(t, r, ids[0]).State, job.Succeeded)
	is.True(time.Since(began) < 20*time.Second)
}

// A recovery and a claim that the server refuses are repeated after a second, without waiting for a heartbeat or a poll.
func TestRefusedRecoveriesAndClaims(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	id := lapsed(t, pool, newRunner(t, pool, runner.Options{}, nil), 1)[0]
	for _, state := range []string{"pending", "running"} { // the sequences count on although the transactions are rolled back
		exec(t, pool, `create sequence to_`+state+`; create function refuse_`+state+`() returns trigger language plpgsql as $$ begin
				if nextval('to_`+state+`') <= 2 then raise exception 'refused'; end if;
				return new;
			end $$;
			create trigger refuse_`+state+` before update on trapeze.live for each row when (old.state <> new.state and new.state = '`+state+`')
				execute function refuse_`+state+`()`)
	}
	r := start(t, pool, silent, map[string]handler{"k": succeed})
	p := inside.Of(r).Pod
	for range 2 { // a pod may recover others' jobs after its second heartbeat
		is.True(p.BeatOnce(t.Context(), true))
	}
	began := time.Now()
	p.Wake()
	is.Equal(waitEnded(t, r, id).State, job.Succeeded)
	is.True(time.Since(began) < 20*time.Second)
	is.Equal(queryOne[int](t, pool, `select (select last_value from to_pending) + (select last_value from to_running)`), 6)
}

// A process that was frozen claims nothing until a heartbeat succeeds. It then claims the jobs that became pending meanwhile, without
// waiting for a poll.
func TestClaimAfterRegainedTrust(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	id := lapsed(t, pool, newRunner(t, pool, runner.Options{}, nil), 1)[0]
	r := start(t, pool, silent, map[string]handler{"k": succeed})
	p := inside.Of(r).Pod
	exec(t, pool, `update trapeze.pods set closed_at = now() - interval '1 hour', swept_at = now() where closed_at is not null`)
	p.Lease.Renewed(time.Now().Add(-time.Hour), time.Now(), time.Minute, true)
	exec(t, pool, `update trapeze.live set state = 'pending', pod = null`) // no pod is notified, and nothing else is due
	began := time.Now()
	is.True(p.BeatOnce(t.Context(), true))
	is.Equal(waitEnded(t, r, id).State, job.Succeeded)
	is.True(time.Since(began) < 20*time.Second)
}

// A pod whose row was closed registers again and claims the jobs that became pending meanwhile, without waiting for a poll.
func TestReregisteredPodsClaim(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	id := lapsed(t, pool, newRunner(t, pool, runner.Options{}, nil), 1)[0]
	r := start(t, pool, silent, map[string]handler{"k": succeed})
	exec(t, pool, `update trapeze.pods set closed_at = now() - interval '1 hour', swept_at = now() where closed_at is null or swept_at is null`)
	exec(t, pool, `update trapeze.live set state = 'pending', pod = null`) // no pod is notified, and nothing else is due
	began := time.Now()
	inside.Of(r).Pod.BeatOnce(t.Context(), true)
	is.Equal(waitEnded(t, r, id).State, job.Succeeded)
	is.True(time.Since(began) < 20*time.Second)
}
