package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/faultnet"
	"github.com/trapeze-run/trapeze/runner"
)

// standby measures the cost of idle pods.
func (b *lab) standby(ctx context.Context) (l line, err error) {
	length := max(b.length(30*time.Second), 5*time.Second)
	l = line{What: fmt.Sprintf("idle pods with default options for %s: statements sent per second and pod (pings come from the connection pool), and processor time in percent of one core; for the server, minus what it uses without pods", length),
		Goal: "at most one statement per heartbeat (0.5 a second) and one per poll (0.1 a second)"}
	rest, err := b.standbyOnce(ctx, 0, length)
	if err != nil {
		return l, err
	}
	for _, pods := range []int{1, 20} {
		b.printf("standby: %d pods", pods)
		s, err := b.standbyOnce(ctx, pods, length)
		if err != nil {
			return l, err
		}
		name := fmt.Sprintf("%d pods ", pods)
		if pods == 1 {
			name = "1 pod "
		}
		for _, class := range classes {
			l.set(name+class+"/s", float64(s.counts[class])/s.seconds/float64(pods))
		}
		if s.clientKnown {
			l.set(name+"client CPU %", 100*s.client/s.seconds)
		}
		if s.serverKnown {
			l.set(name+"server CPU %", max(0, 100*(s.server/s.seconds-rest.server/rest.seconds)))
		}
	}
	return l, nil
}

// idlePeriod holds the measurements of an idle period.
type idlePeriod struct {
	seconds                  float64
	counts                   map[string]int // number of statements by class
	client, server           float64        // CPU time in seconds
	clientKnown, serverKnown bool
}

// standbyOnce starts pods, waits until they have settled, and measures them while they are idle for the given time.
func (b *lab) standbyOnce(ctx context.Context, pods int, length time.Duration) (s idlePeriod, err error) {
	url, drop, err := b.fresh(ctx)
	if err != nil {
		return s, err
	}
	fleet := &rig{url: url, end: []func(){drop}}
	defer fleet.close()
	var heard tally
	for i := range pods {
		pool, err := heard.pool(ctx, url)
		if err != nil {
			return s, err
		}
		r, err := runner.New(pool, runner.Options{PodName: fmt.Sprintf("idle-%d", i)})
		if err != nil {
			pool.Close()
			return s, err
		}
		fleet.end = append(fleet.end, pool.Close, r.Close)
		fleet.pool, fleet.r = pool, r
		runner.Handle(r, func(context.Context, *runner.Job[noop]) (*runner.Outcome, error) { return nil, nil })
		fleet.start(ctx)
	}
	// Once this is true, every connection has been opened and used, and the lanes have been polled for the first time.
	err = until(ctx, time.Minute, "the pods together have listened and polled once each, and sent three heartbeats each", func() (bool, error) {
		t := heard.counts()
		return t["listen"] >= pods && t["poll"] >= pods && t["heartbeat"] >= 3*pods, nil
	})
	if err != nil {
		return s, err
	}
	before := heard.counts()
	client, clientKnown := ownCPU()
	server, serverKnown := b.serverCPU(ctx)
	began := time.Now()
	select {
	case <-time.After(length):
	case <-ctx.Done():
		return s, ctx.Err()
	}
	s.seconds, s.clientKnown, s.serverKnown = time.Since(began).Seconds(), clientKnown, serverKnown
	s.counts = heard.counts()
	for class, n := range before {
		s.counts[class] -= n
	}
	now, _ := ownCPU()
	s.client = (now - client).Seconds()
	now, _ = b.serverCPU(ctx)
	s.server = (now - server).Seconds()
	if pods == 0 {
		return s, nil
	}
	return s, fleet.standsBy(ctx, pods, s)
}

// standsBy returns an error unless all pods were alive and idle for the whole period.
func (g *rig) standsBy(ctx context.Context, pods int, s idlePeriod) error {
	var alive, jobs int
	err := g.pool.QueryRow(ctx, `select (select count(*) from trapeze.pods where closed_at is null and lease_until > now()),
		(select count(*) from trapeze.jobs)`).Scan(&alive, &jobs)
	if err != nil {
		return err
	}
	beats := float64(pods) * (s.seconds/2 - 1)
	if alive != pods || jobs != 0 || float64(s.counts["heartbeat"]) < beats {
		return fmt.Errorf("%d of %d pods are alive and sent %d heartbeats in %.0f s; there are %d jobs", alive, pods, s.counts["heartbeat"], s.seconds, jobs)
	}
	return nil
}

// classes lists the classes of statements that an idle pod sends.
var classes = []string{"statements", "heartbeat", "poll", "ping", "other"}

func classOf(sql string) string {
	switch {
	case strings.HasPrefix(sql, "-- ping"):
		return "ping"
	case strings.HasPrefix(sql, "listen "):
		return "listen"
	case strings.Contains(sql, "lease_until = case when"):
		return "heartbeat"
	case strings.Contains(sql, "update trapeze.live l set state = 'running'"):
		return "poll"
	}
	return "other"
}

// tally counts statements by class. The total is counted under "statements".
type tally struct {
	mu      sync.Mutex
	byClass map[string]int
}

func (t *tally) hear(sql string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byClass == nil {
		t.byClass = map[string]int{}
	}
	t.byClass[classOf(sql)]++
	t.byClass["statements"]++
}

// counts returns a copy of the counts.
func (t *tally) counts() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.byClass)
}

// pool returns a pool that counts the statements sent on its connections, including those that a runner opens with the pool's
// configuration.
func (t *tally) pool(ctx context.Context, url string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return faultnet.ListenIn(conn, t.hear), nil
	}
	return pgxpool.NewWithConfig(ctx, config)
}
