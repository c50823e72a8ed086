package torture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/internal/torture/history"
)

// In a busy fleet something wakes every pod all the time, so that a wake-up which one of them missed never shows. This is
// asked of the fleet when it has come to rest, again and again: now and then a pod still looks for what the faults left.
const (
	askFor     = 8 * time.Second  // new jobs
	restWithin = 15 * time.Second // of the fleet, before
	wakeWithin = 8 * time.Second  // of a job that nobody heard of; more than a poll, and more than the checker bears
)

// listenersSQL are the sessions that wait for notifications. A quiet one is asked now and then whether it is still there.
const (
	listenersSQL    = `from pg_stat_activity where usename like 'pod%' and (query ilike 'listen %' or query = '-- ping')`
	endListenersSQL = `select count(*) filter (where pg_terminate_backend(pid)) ` + listenersSQL
	noListenersSQL  = `select not exists (select ` + listenersSQL + `)`
	allListenSQL    = `select count(distinct usename) = $1 ` + listenersSQL
	endedSQL        = `select not exists (select from trapeze.live where id = $1)`
)

// LostWakeUps submits jobs at moments at which nobody can hear of it, from a program that runs none: every pod's
// listening session has been ended, and it gets no new one until the job is there. Everything else goes on.
func (c *Crowd) LostWakeUps(ctx context.Context) error {
	c.w.enter("lost wake-ups", restWithin+askFor+wakeWithin)
	c.w.ask(ctx, restWithin, quietSQL)
	for n, began := 0, time.Now(); time.Since(began) < askFor; n++ {
		record := history.Fault{Act: history.Act{No: -1 - n, At: c.w.Since(), Fault: "F34", Verb: "lost_wake_up"}, Began: time.Now()}
		id, struck, err := c.unheard(ctx)
		record.Healed, record.Struck = time.Now(), struck
		if err != nil && ctx.Err() == nil {
			record.Error = err.Error()
		}
		c.w.Struck(record)
		if id != 0 {
			c.w.ask(ctx, wakeWithin, endedSQL, id)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// unheard submits one job of which no pod hears. It returns how many listening sessions were ended.
func (c *Crowd) unheard(ctx context.Context) (id int64, struck int, err error) {
	defer func() {
		for _, p := range c.w.Pods() {
			p.Proxy().Pass()
		}
	}()
	if !c.w.ask(ctx, wakeWithin, allListenSQL, len(c.w.Pods())) {
		return 0, 0, errors.New("not every pod listens")
	}
	for _, p := range c.w.Pods() {
		p.Proxy().Refuse()
	}
	if err := c.w.Admin.QueryRow(ctx, endListenersSQL).Scan(&struck); err != nil {
		return 0, 0, err
	}
	if !c.w.ask(ctx, clientPatience, noListenersSQL) {
		return 0, struck, errors.New("somebody still listens")
	}
	call := c.begin(0, "submit", nil)
	call.Kind, call.Args = "demo.noop", json.RawMessage("{}")
	defer func() {
		call.Ended, call.Job, call.Outcome = time.Now(), id, history.OK
		if err != nil {
			call.Outcome = history.Unknown
		}
		c.w.Called(call)
	}()
	submitting, cancel := context.WithTimeout(ctx, clientPatience)
	defer cancel()
	cmd := exec.CommandContext(submitting, c.w.binary, "enqueue", call.Kind, "--args", string(call.Args))
	cmd.Env = append(cleanEnvironment(), "DATABASE_URL="+c.w.AppURL(), "GORACE=atexit_sleep_ms=10")
	out, err := cmd.Output()
	if err != nil {
		return 0, struck, fmt.Errorf("trapeze enqueue: %w", err)
	}
	id, err = strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	return id, struck, err
}

// ask asks the database until it says yes, and reports whether it did within d.
func (w *World) ask(ctx context.Context, d time.Duration, sql string, args ...any) (yes bool) {
	for deadline := time.Now().Add(d); time.Now().Before(deadline) && ctx.Err() == nil; pause(ctx, sampleEvery) {
		asking, cancel := context.WithTimeout(ctx, sampleWithin)
		err := w.Admin.QueryRow(asking, sql, args...).Scan(&yes)
		cancel()
		if err == nil && yes {
			return true
		}
	}
	return false
}
