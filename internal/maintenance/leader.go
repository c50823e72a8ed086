package maintenance

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
)

// A role is what a pod has to do with the maintenance.
type role int

const (
	standsBy role = iota // another pod leads: a task is done here when it is overdue
	leads                // it is this one
	shares               // the leader is unknown: the pod that comes first does a task
)

// leader tries to hold the lock of the maintenance, on a connection of its own, and knows whether it does. The lock is a hint that
// saves work: every task may be done by two pods at once, and is done by another when the lock holder does nothing.
type leader struct {
	m *Maintenance

	mu     sync.Mutex
	conn   *pgx.Conn
	held   bool
	alone  bool // no direct connection
	failed int  // attempts to connect, one after the other
}

// leadWithin bounds each question for the lead.
const leadWithin = 5 * time.Second

// role is what this pod does now, as of the latest check.
func (l *leader) role() role {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.held:
		return leads
	case l.alone:
		return shares
	}
	return standsBy
}

// keep checks the lead until ctx ends: a pod that leads learns that it has lost it, the others take it over. Then it is given up.
func (l *leader) keep(ctx context.Context) {
	defer l.resign()
	for until := l.m.o.Store.UntilReset(); l.rest(ctx, until); {
		until = l.m.o.Store.UntilReset()
		l.check(ctx)
	}
}

// rest waits for the next check: until ends, or it is time. It reports whether ctx still goes on.
func (l *leader) rest(ctx, until context.Context) bool {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(until, cancel)()
	_ = wait.For(waiting, l.interval())
	return ctx.Err() == nil
}

// interval is the delay before the next check: LeadEvery, and doubling up to a minute while no connection can be made.
func (l *leader) interval() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	longest := l.m.o.LeadEvery
	for range min(l.failed-1, 10) {
		longest = max(min(2*longest, time.Minute), l.m.o.LeadEvery)
	}
	return longest*8/10 + rand.N(longest/5) // #nosec G404 -- jitter
}

// check asks whether this pod still leads, or for the lead.
func (l *leader) check(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.m.o.Metrics.Leader.Set(map[bool]float64{true: 1}[l.held || l.alone && l.m.o.Trusted()]) }()
	if l.m.o.Direct == nil {
		l.alone = true
		return
	}
	asking, cancel := context.WithTimeout(ctx, leadWithin)
	defer cancel()
	if l.held && l.has(asking) {
		return
	}
	if l.conn == nil {
		conn, err := l.m.o.Direct(asking)
		if err != nil {
			if l.failed++; l.failed == 1 && ctx.Err() == nil {
				l.m.o.Log.WarnContext(ctx, "no direct connection for the lead of the maintenance: it is done all the same, by whichever pod comes first",
					telemetry.Err, err)
			}
			l.alone = true
			return
		}
		l.conn = conn
	}
	l.failed, l.alone = 0, false
	held, err := l.m.o.Store.TakeLead(asking, l.conn)
	if err != nil { // or it is a standby
		l.drop()
		return
	}
	if l.held = held; held && l.has(asking) {
		l.m.o.Log.InfoContext(ctx, "leads the maintenance", telemetry.Pod, l.m.o.Pod)
	}
}

// still reports whether this pod leads at this moment: asked before each action.
func (l *leader) still(ctx context.Context) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, leadWithin)
	defer cancel()
	return l.held && l.has(ctx)
}

// has asks the session whether it has the lock; without it, or without an answer, the connection is given up, and with it the lead.
func (l *leader) has(ctx context.Context) bool {
	has, err := l.m.o.Store.HasLead(ctx, l.conn)
	if err != nil || !has {
		l.drop()
		return false
	}
	return true
}

// drop gives the connection up. It says so first: when the lock is free, another pod says at once that it leads.
func (l *leader) drop() {
	l.m.o.Metrics.Leader.Set(0)
	closing, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = l.conn.Close(closing)
	l.conn, l.held = nil, false
}

func (l *leader) resign() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		l.drop()
	}
	l.m.o.Metrics.Leader.Set(0)
}
