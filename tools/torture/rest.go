package torture

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

const (
	askFor     = 8 * time.Second  // duration for which each test is repeated
	restWithin = 15 * time.Second // time that the fleet may take to become idle before the tests
	wakeWithin = 8 * time.Second  // time that a job may wait if no pod was notified of it; longer than a poll interval and longer than the checker allows
)

// These are the tests of an idle fleet. Each test is recorded under its name, like an injector.
const (
	lostWakeUp = "lost_wake_up"
	lateCancel = "late_cancel"
	lostReply  = "lost_reply"
)

// listenersSQL selects the sessions that wait for notifications. One of them may hold the maintenance leadership.
const (
	listenersSQL    = `from pg_stat_activity where usename like 'pod%' and application_name = 'trapeze-listen'`
	endListenersSQL = `select count(*) filter (where pg_terminate_backend(pid)) ` + listenersSQL
	noListenersSQL  = `select not exists (select ` + listenersSQL + `)`
	allListenSQL    = `select count(distinct usename) = $1 ` + listenersSQL
	endedSQL        = `select not exists (select from trapeze.live where id = $1)`
)

// AskAtRest runs three tests on the fleet once all faults have been undone and the fleet is idle. In a busy fleet, two of them would show
// nothing, because pods are woken all the time, which hides missed wake-ups, and every fault makes pods search for claims whose replies
// were lost. The third test, a cancel at the last moment, needs a timing that clients rarely achieve. The test with lost replies comes
// last, because it causes wake-ups later. Each test is repeated, because a pod may still be searching for claims after an earlier fault.
func (c *Crowd) AskAtRest(ctx context.Context) error {
	questions := []struct {
		fault, verb string
		long        time.Duration
		ask         func(ctx context.Context, n int) (id int64, struck int, err error)
	}{{"F34", lostWakeUp, askFor, c.unheard}, {"F39", lateCancel, askFor / 2, c.cancelled}, {"F24", lostReply, askFor, c.unanswered}}
	c.w.enter("at rest", restWithin+time.Duration(len(questions))*(askFor+wakeWithin))
	c.w.ask(ctx, restWithin, `select quiet from (`+quietSQL+`) q (jobs, quiet)`)
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
			c.w.RecordFault(record)
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

// unheard submits a job of which no pod is notified. To do so, it uses a program that runs no jobs, terminates every pod's listening
// session, and blocks new listening sessions until the job is stored. All other sessions remain open. It returns the number of listening
// sessions that it terminated.
func (c *Crowd) unheard(ctx context.Context, _ int) (id int64, struck int, err error) {
	defer func() {
		for _, p := range c.w.Pods() {
			p.Proxy().Pass()
		}
	}()
	if !c.w.ask(ctx, wakeWithin, allListenSQL, len(c.w.Pods())) {
		return 0, 0, errors.New("not every pod is listening")
	}
	for _, p := range c.w.Pods() {
		p.Proxy().Refuse()
	}
	if err := c.w.Admin.QueryRow(ctx, endListenersSQL).Scan(&struck); err != nil {
		return 0, 0, err
	}
	if !c.w.ask(ctx, clientPatience, noListenersSQL) {
		return 0, struck, errors.New("a pod is still listening")
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

// replies lists the replies that an idle fleet loses. Each entry stands for the reply to the statement that contains text. The query sent
// returns true once that statement has been sent.
var replies = []struct{ text, sent string }{
	{text: submitText}, // a submission goes through a single pod
	{claimText, `select not exists (select from trapeze.live where id = $1 and state = 'pending')`},
	{finishText, endedSQL},
}

// unanswered cuts the reply, in turn, to a submission, to the claim of a job of which all pods were notified, and to the finish of a job
// with a next step. It returns the number of replies that were cut. Some of these replies may belong to claims that found no job.
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

// lastMomentSQL selects the job to cancel in a pipeline, and the ID of the pod that is running the job.
const lastMomentSQL = `select l.id, l.pod::text from trapeze.live l join trapeze.jobs j on j.id = l.id
	where j.pipeline_id = $1 and l.state = 'running' and l.kind in ('demo.tx', 'demo.sleep')`

// cancelled cancels a running job through a different pod, so that the job's pod does not learn of the cancel until its next heartbeat. It
// alternates between one of several jobs that queue their writes and end together, and a chain step with a compensation. It returns the
// number of accepted cancels.
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
		if pipeline == 0 || id%2 == 0 { // demo.tx queues its writes only for every second job
			pipeline = id
		}
	}
	var podID string
	for deadline := time.Now().Add(wakeWithin); podID == ""; pause(ctx, sampleEvery/2) {
		if time.Now().After(deadline) || ctx.Err() != nil {
			return id, 0, errors.New("no job to cancel is running")
		}
		_ = c.w.Admin.QueryRow(ctx, lastMomentSQL, pipeline).Scan(&id, &podID) // fails until the job is running
	}
	for _, p := range c.w.Pods() {
		if p.PodID() != podID {
			if c.end(ctx, 0, p, "cancel", id).Outcome == history.OK {
				struck++
			}
			break
		}
	}
	return id, struck, nil
}

// announce submits a job directly to the database and notifies all pods.
func (c *Crowd) announce(ctx context.Context, what submission) (id int64, err error) {
	return c.elsewhere(ctx, what, func(ctx context.Context, s submission) (id int64, err error) {
		const sql = `select id, pg_notify('trapeze_wake', '')::text from trapeze.enqueue($1, $2, chain => $3)`
		err = c.w.Admin.QueryRow(ctx, sql, s.Kind, s.Args, s.Chain).Scan(&id, nil)
		return id, err
	})
}

// elsewhere submits a job without going through a pod, and records the call.
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

// ask repeats a query until it returns true, and reports whether it did so within d.
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
