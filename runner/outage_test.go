package runner_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/faultnet"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// An outage cuts off all pods for longer than their leases, and then the pods reconnect one after another. The pods that reconnect late are
// alive and must keep their jobs. A pod that died during the outage is still detected, at most one lease later.
func TestAfterAnOutageOfAllPodsTheLateOnesAreSparedForOneLease(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	const lease = 8 * time.Second
	var mu sync.Mutex
	calls := map[int64]int{}
	wait, open := gate(t)
	handler := func(_ context.Context, j *raw) (*runner.Outcome, error) {
		mu.Lock()
		calls[j.ID()]++
		mu.Unlock()
		if j.Fence() == 1 {
			<-wait
		}
		return nil, nil
	}
	kinds := map[string]map[string]does{"dies": {"dies": handler}, "a": {"a": handler, "dies": handler}, "b": {"b": handler}, "c": {"c": handler}}
	names := []string{"dies", "a", "b", "c"}
	proxies, pods, jobs, boots := map[string]*faultnet.Proxy{}, map[string]*runner.Runner{}, map[string]int64{}, map[string]string{}
	for _, name := range names {
		proxy, cut := cable(t, url)
		o := runner.Options{Name: name, LeaseFor: lease, HeartbeatEvery: 400 * time.Millisecond, PollEvery: time.Second, Slots: 2}
		proxies[name], pods[name] = proxy, start(t, cut, o, kinds[name], runner.KeepRunning())
		boots[name] = pods[name].Boot()
		jobs[name] = begun(t, pods[name], of(name))
	}
	is.Equal(one[int](t, direct, `select count(distinct pod) from trapeze.live`), len(names)) // each pod runs one job
	cut := one[time.Time](t, direct, `select clock_timestamp()`)
	for _, name := range names {
		proxies[name].Refuse()
		proxies[name].Reset()
	}
	pgtest.WaitFor(t, time.Minute, "all leases have ended", func() bool {
		return one[bool](t, direct, `select bool_and(lease_until < now()) from trapeze.pods`)
	})
	beats := func(name string, n int) { // waits for n heartbeats, each of which renews the lease
		t.Helper()
		latest := time.Time{}
		for range n {
			pgtest.WaitFor(t, time.Minute, "a heartbeat of "+name, func() bool {
				until := one[time.Time](t, direct, `select lease_until from trapeze.pods where boot = $1`, boots[name])
				renewed := until.After(cut.Add(lease+time.Second)) && until.After(latest)
				if renewed {
					latest = until
				}
				return renewed
			})
		}
	}
	proxies["a"].Pass()
	beats("a", 1)
	back := one[time.Time](t, direct, `select clock_timestamp()`)
	beats("a", 3) // after two heartbeats, it may declare other pods dead
	proxies["b"].Pass()
	beats("b", 3)
	proxies["c"].Pass()
	beats("c", 1)
	if late := one[time.Time](t, direct, `select clock_timestamp()`).Sub(back); late > lease-time.Second {
		t.Skipf("this machine took %s to bring three pods back, which is about the lease of %s", late, lease)
	}
	pgtest.WaitFor(t, time.Minute, "the job of the pod that died has ended elsewhere", func() bool {
		return get(t, pods["a"], jobs["dies"]).State == job.Succeeded
	})
	is.Equal(get(t, pods["a"], jobs["dies"]).Crashes, 1)
	took := one[time.Time](t, direct, `select closed_at from trapeze.pods where boot = $1`, boots["dies"]).Sub(back)
	is.True(took < 2*lease) // it waited for one lease, not two
	open()
	for _, name := range names[1:] {
		j := ended(t, pods["a"], jobs[name])
		is.Equal(fmt.Sprint(name, j.State, j.Fence, j.Crashes), fmt.Sprint(name, job.Succeeded, 1, 0)) // the pod kept its job
		is.Equal(pods[name].Boot(), boots[name])                                                       // the pod was never declared dead
		mu.Lock()
		is.Equal(calls[jobs[name]], 1)
		mu.Unlock()
	}
	checkHistory(t, direct, pods["a"])
}

// A pod that has just started has seen no outage, so it immediately recovers the jobs of pods that died long ago.
func TestAFreshPodSparesNobody(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	dead := make1(t, pool, runner.Options{}, nil)
	const pods, each = 3, 5
	var ids []int64
	for n := range pods {
		boot := fmt.Sprintf("00000000-0000-4000-8000-%012d", n)
		exec(t, pool, `insert into trapeze.pods (boot, name, kinds, slots, lease_until) values ($1, 'dead', '{k}', 10, now() - interval '10 minutes')`, boot)
		for range each {
			ids = append(ids, enqueue(t, dead, of("k"), runner.Foreign()))
		}
		exec(t, pool, `update trapeze.live set state = 'running', pod = $1, fence = 1, attempt = 1, claimed_at = now() - interval '11 minutes'
			where state = 'pending'`, boot)
	}
	began := time.Now()
	for _, name := range []string{"fresh-1", "fresh-2"} {
		start(t, pool, runner.Options{Name: name, HeartbeatEvery: 2 * time.Second}, map[string]does{"k": nothing}) // with default options
	}
	for _, id := range ids {
		pgtest.WaitFor(t, time.Minute, "it has ended", func() bool { return get(t, dead, id).State == job.Succeeded })
	}
	is.True(time.Since(began) < 10*time.Second) // all jobs are recovered quickly
}

// listens is a log handler that signals when a certain message is logged.
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

// For a while, a proxy may still lead to the former primary. When a heartbeat fails there, the pod must not wait for the next regular one.
func TestAHeartbeatThatFailedIsSentAgainBeforeItsTurn(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	proxy, pool := cable(t, url)
	o := named("a")
	o.HeartbeatEvery, o.LeaseFor = time.Hour, 3*time.Hour
	failed := make(chan struct{}, 1)
	o.Logger = slog.New(listens{slog.DiscardHandler, "heartbeat failed", failed})
	r := start(t, pool, o, map[string]does{"k": nothing})
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
