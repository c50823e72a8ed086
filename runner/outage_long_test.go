//go:build long

package runner_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/faultnet"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// An outage cuts off all pods for longer than their leases. The pods then reconnect one after another, and those that reconnect late must
// keep their jobs. A pod that died during the outage is still detected, at most one lease later.
func TestLateReconnectAfterTotalOutage(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	const lease = 8 * time.Second
	var mu sync.Mutex
	calls := map[int64]int{}
	wait, open := latch(t)
	work := func(_ context.Context, j *raw) (*runner.Outcome, error) {
		mu.Lock()
		calls[j.ID()]++
		mu.Unlock()
		if j.Fence() == 1 {
			<-wait
		}
		return nil, nil
	}
	kinds := map[string]map[string]handler{"dies": {"dies": work}, "a": {"a": work, "dies": work}, "b": {"b": work}, "c": {"c": work}}
	names := []string{"dies", "a", "b", "c"}
	proxies, pods, jobs, podIDs := map[string]*faultnet.Proxy{}, map[string]*runner.Runner{}, map[string]int64{}, map[string]string{}
	for _, name := range names {
		proxy, cut := cable(t, url)
		o := runner.Options{PodName: name, LeaseDuration: lease, HeartbeatInterval: 400 * time.Millisecond, PollInterval: time.Second, Slots: 2}
		proxies[name], pods[name] = proxy, start(t, cut, o, kinds[name], runner.ContinueWithoutDatabase())
		podIDs[name] = pods[name].PodID()
		jobs[name] = enqueueStarted(t, pods[name], rawArgs(name))
	}
	is.Equal(queryOne[int](t, direct, `select count(distinct pod) from trapeze.live`), len(names)) // each pod runs one job
	cut := queryOne[time.Time](t, direct, `select clock_timestamp()`)
	for _, name := range names {
		proxies[name].Refuse()
		proxies[name].Reset()
	}
	pgtest.WaitFor(t, time.Minute, "all leases have ended", func() bool {
		return queryOne[bool](t, direct, `select bool_and(lease_until < now()) from trapeze.pods`)
	})
	beats := func(name string, n int) { // waits for n heartbeats, each of which renews the lease
		t.Helper()
		latest := time.Time{}
		for range n {
			pgtest.WaitFor(t, time.Minute, "a heartbeat of "+name, func() bool {
				until := queryOne[time.Time](t, direct, `select lease_until from trapeze.pods where id = $1`, podIDs[name])
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
	back := queryOne[time.Time](t, direct, `select clock_timestamp()`)
	beats("a", 3) // after two heartbeats, the pod may declare other pods dead
	proxies["b"].Pass()
	beats("b", 3)
	proxies["c"].Pass()
	beats("c", 1)
	if late := queryOne[time.Time](t, direct, `select clock_timestamp()`).Sub(back); late > lease-time.Second {
		t.Skipf("this machine took %s to bring three pods back, which is about the lease of %s", late, lease)
	}
	pgtest.WaitFor(t, time.Minute, "the job of the pod that died has ended elsewhere", func() bool {
		return get(t, pods["a"], jobs["dies"]).State == job.Succeeded
	})
	is.Equal(get(t, pods["a"], jobs["dies"]).Crashes, 1)
	took := queryOne[time.Time](t, direct, `select closed_at from trapeze.pods where id = $1`, podIDs["dies"]).Sub(back)
	is.True(took < 2*lease) // the dead pod was detected after one lease, not two
	open()
	for _, name := range names[1:] {
		j := waitEnded(t, pods["a"], jobs[name])
		is.Equal(fmt.Sprint(name, j.State, j.Fence, j.Crashes), fmt.Sprint(name, job.Succeeded, 1, 0)) // the pod kept its job
		is.Equal(pods[name].PodID(), podIDs[name])                                                     // the pod was never declared dead
		mu.Lock()
		is.Equal(calls[jobs[name]], 1)
		mu.Unlock()
	}
	checkHistory(t, direct, pods["a"])
}
