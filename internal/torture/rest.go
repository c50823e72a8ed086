package torture

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/internal/torture/history"
	"github.com/trapeze-run/trapeze/job"
)

const (
	askFor     = 8 * time.Second  // each question, again and again
	restWithin = 15 * time.Second // of the fleet, before
	wakeWithin = 8 * time.Second  // of a job that no pod heard of; more than a poll, and more than the checker bears
)

// The questions to a fleet at rest, by the verbs of their records.
const (
	lostWakeUp = "lost_wake_up"
	lateCancel = "late_cancel"
	lostReply  = "lost_reply"
)

// listenersSQL are the sessions that wait for notifications, and may hold the lead of the maintenance.
const (
	listenersSQL    = `from pg_stat_activity where usename like 'pod%' and application_name = 'trapeze-listen'`
	endListenersSQL = `select count(*) filter (where pg_terminate_backend(pid)) ` + listenersSQL
	noListenersSQL  = `select not exists (select ` + listenersSQL + `)`
	allListenSQL    = `select count(distinct usename) = $1 ` + listenersSQL
	endedSQL        = `select not exists (select from trapeze.live where id = $1)`
)

// AskAtRest asks the healed fleet three questions once it rests. A busy fleet hides two answers: something wakes every pod all the time, so that
// a missed wake-up never shows, and every fault has pods search for claims whose replies were lost. The third one, a cancel at the last moment, takes
// a moment that clients seldom meet. Lost replies come last, because they wake pods later on. Each question is asked repeatedly: at times a pod still searches for claims after an earlier fault.
func (c *Crowd) AskAtRest(ctx context.Context) error {
	questions := []struct {
		fault, verb string
		long        time.Duration
		ask         func(ctx context.Context, n int) (id int64, struck int, err error)
	}{{"F34", lostWakeUp, askFor, c.unheard}, {"F39", lateCancel, askFor / 2, c.cancelled}, {"F24", lostReply, askFor, c.unanswered}}
	c.w.enter("at rest", restWithin+time.Duration(len(questions))*(askFor+wakeWithin))
	c.w.ask(ctx, restWithin, quietSQL)
	no := 0
	for _, q := range questions {
		for n, began := 0, time.Now(); time.Since(began) < q.long; n++ {
			no--
			record := history.Fault{Act: history.Act{No: no, At: c.w.Since(), Fault: q.fault, Verb: q.verb}, Began: time.Now()}
			id, struck, err := q.ask(ctx, n)
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
	}
	return nil
}

// unheard submits a job without a notification that reaches a pod, from a program that runs no jobs: every pod's listening session is ended, and
// none is let in until the job is there. All other sessions stay. It returns the number of listening sessions that were ended.
func (c *Crowd) unheard(ctx context.Context, _ int) (id int64, struck int, err error) {
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
		return 0, struck, errors.New("a pod still listens")
	}
	id, err = c.elsewhere(ctx, simple("demo.noop", `{}`), func(ctx context.Context, s submission) (int64, error) {
		cmd := exec.CommandContext(ctx, c.w.binary, "enqueue", s.Kind, "--args", string(s.Args))
		cmd.Env = append(cleanEnvironment(), "DATABASE_URL="+c.w.AppURL(), "GORACE=atexit_sleep_ms=10")
		out, err := cmd.Output()
		if err != nil {
			return 0, fmt.Errorf("trapeze enqueue: %w", err)
		}
		return strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	})
	return id, struck, err
}

// replies are the replies that a fleet at rest loses, each to the statement that contains a text. Once the query sent returns true, it was sent.
var replies = []struct{ text, sent string }{
	{text: submitText}, // through one pod, the next one each time
	{claimText, `select not exists (select from trapeze.live where id = $1 and state = 'pending')`},
	{finishText, endedSQL},
}

// unanswered cuts a reply: in turn to a submission, to the claim of a job that all pods are notified of, and to the end of a job with a next step.
// It returns the number of replies that were cut: pods whose claims found no job may have lost theirs, too.
func (c *Crowd) unanswered(ctx context.Context, n int) (id int64, struck int, err error) {
	pods, reply := c.w.Pods(), replies[n%len(replies)]
	if reply.text == submitText {
		pods = pods[n/len(replies)%len(pods):][:1]
	}
	for _, p := range pods {
		cut, disarm := p.Proxy().CutReply(reply.text)
		defer func() {
			disarm()
			select {
			case <-cut:
				struck++
			default:
			}
		}()
	}
	if reply.text == submitText {
		return c.submit(ctx, 0, pods[0], simple("demo.echo", `{"at rest":%d}`, n)).Job, 0, nil
	}
	what := simple("demo.sleep", `{"ms":1}`)
	what.Chain = []job.Step{simple("demo.noop", `{}`).step()}
	if id, err = c.announce(ctx, what); err == nil {
		c.w.ask(ctx, wakeWithin, reply.sent, id)
	}
	return id, 0, err
}

// lastMomentSQL is the job of a pipeline that is worth a cancel, and the boot id that runs it.
const lastMomentSQL = `select l.id, l.pod::text from trapeze.live l join trapeze.jobs j on j.id = l.id
	where j.pipeline_id = $1 and l.state = 'running' and l.kind in ('demo.tx', 'demo.sleep')`

// cancelled cancels a job through a pod that does not run it, so that the other pod learns of it by its next heartbeat: in turn one of several jobs
// that queue their writes and end together, and a step of a chain with a compensation. It returns the number of cancels that were accepted.
func (c *Crowd) cancelled(ctx context.Context, n int) (id int64, struck int, err error) {
	what, many := simple("demo.chain", `{"steps":[{"kind":"demo.sleep","args":{"ms":1500}}],"undo":{"kind":"demo.echo","args":{"at rest":%d}}}`, n), 1
	if n%2 == 0 {
		what, many = simple("demo.tx", `{"rows":1,"ms":600}`), podSlots-2
	}
	var pipeline int64
	for range many {
		if id, err = c.announce(ctx, what); err != nil {
			return id, 0, err
		}
		if pipeline == 0 || id%2 == 0 { // demo.tx queues the writes of every other job
			pipeline = id
		}
	}
	var boot string
	for deadline := time.Now().Add(wakeWithin); boot == ""; pause(ctx, sampleEvery/2) {
		if time.Now().After(deadline) || ctx.Err() != nil {
			return id, 0, errors.New("no job to be cancelled runs")
		}
		_ = c.w.Admin.QueryRow(ctx, lastMomentSQL, pipeline).Scan(&id, &boot) // not yet
	}
	for _, p := range c.w.Pods() {
		if p.Boot() != boot {
			if c.end(ctx, 0, p, "cancel", id).Outcome == history.OK {
				struck++
			}
			break
		}
	}
	return id, struck, nil
}

// announce submits a job past all pods and notifies them.
func (c *Crowd) announce(ctx context.Context, what submission) (id int64, err error) {
	return c.elsewhere(ctx, what, func(ctx context.Context, s submission) (id int64, err error) {
		const sql = `select id, pg_notify('trapeze_wake', '')::text from trapeze.enqueue($1, $2, chain => $3)`
		err = c.w.Admin.QueryRow(ctx, sql, s.Kind, s.Args, s.Chain).Scan(&id, nil)
		return id, err
	})
}

// elsewhere submits a job past all pods and writes the call down.
func (c *Crowd) elsewhere(ctx context.Context, s submission, submit func(context.Context, submission) (int64, error)) (id int64, err error) {
	call := c.begin(0, "submit", nil)
	call.Kind, call.Args, call.Chain = s.Kind, s.Args, s.Chain
	submitting, cancel := context.WithTimeout(ctx, clientPatience)
	defer cancel()
	id, err = submit(submitting, s)
	call.Ended, call.Job, call.Outcome = time.Now(), id, history.OK
	if err != nil {
		call.Outcome = history.Unknown
	}
	c.w.Called(call)
	return id, err
}

// ask repeats a query until it returns true, and reports whether it did within d.
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
