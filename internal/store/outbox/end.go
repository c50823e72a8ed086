package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// End describes how a job that an engine has run ended.
type End struct {
	State    job.State         // succeeded, failed or cancelled
	Outcome  job.OutcomeStatus // if empty, it is ok for a job that succeeded, and error otherwise
	Reason   job.Reason        // if empty, it is ok, error or cancelled, depending on the state
	Result   json.RawMessage   // nil if there is none
	Error    string            // includes the stack of a panic, as described for [job.End]; empty if there is no error
	Class    job.ErrorClass    // for a failed job; if empty, it is error
	Code     string            // empty if there is none
	Undo     json.RawMessage   // steps to run after a failure instead of those that the job had planned; nil if there are none
	Attempts int               // attempts in this epoch, at least 1; 0 counts as 1
	Started  time.Time         // when the first handler was called; if zero, the time at which the start was recorded is used
	// Next is the next step if that step is a job in PostgreSQL, with an id from [Outbox.NewIDs]. The outbox sets its pipeline, parent,
	// step, branch, submitter and trace unless they are given. The step waits in its lane like any other job, and runs in the engine of
	// that lane.
	Next *store.NewJob
}

const (
	// holdRunSQL locks a job in its epoch, and updates its attempt count and start time. It returns the data needed to end the job. If $6 is
	// true, it finds only a job without a recorded start. Plan: live_pkey, jobs_pkey and outbox_pkey, one row each.
	holdRunSQL = `
with held as (
	update trapeze.live l set attempt = l.attempt + $4, started_at = coalesce($5::timestamptz, l.started_at)
	where l.id = $1 and l.fence = $2 and l.pod = $3::uuid
		and not ($6 and (select o.run from trapeze.outbox o where o.id = $1 and o.fence = $2) is not null)
	returning l.*
)
select h.kind, h.lane, h.subject, coalesce(h.key, ''), h.cancel_requested, h.attempt, h.crashes, coalesce(j.max_crashes, k.max_crashes, $7), j.pipeline_id, j.step,
	j.group_id, j.child_no, coalesce(j.impaired, false), j.submitter, coalesce(j.traceparent, ''), pg_current_xact_id()::text
from held h join trapeze.jobs j on j.id = h.id left join trapeze.kinds k on k.kind = h.kind`

	// endedHereSQL returns the state of a job that the engine has ended in an epoch, and the id of the transaction. If a command has ended
	// the job, the row in done contains no transaction id. Plan: the id index of done.
	endedHereSQL = `select d.state, d.xid::text from trapeze.done d where d.id = $1 and d.fence = $2 and d.pod = $3::uuid and d.xid is not null limit 1`

	// doneWithSQL removes a row from the outbox. Plan: outbox_pkey.
	doneWithSQL = `delete from trapeze.outbox where id = $1 and fence = $2`
)

type held struct {
	Kind, Lane, Subject, Key     string
	Cancelled                    bool
	Attempt, Crashes, MaxCrashes int
	PipelineID                   int64
	Step                         int
	store.Branch
	Submitter, Trace string
	XID              string // of the transaction that holds the job
}

// hold locks a job until the transaction ends. It returns [ErrInactive] if the job is not in the given epoch.
func (b *Outbox) hold(ctx context.Context, tx pgx.Tx, id, fence int64, more int, started time.Time, unstarted bool) (h held, err error) {
	err = tx.QueryRow(ctx, b.s.In(holdRunSQL), id, fence, b.podID, more, store.Some(started), unstarted, b.o.MaxCrashes).Scan(&h.Kind,
		&h.Lane, &h.Subject, &h.Key, &h.Cancelled, &h.Attempt, &h.Crashes, &h.MaxCrashes, &h.PipelineID, &h.Step, &h.Group, &h.No, &h.Impaired,
		&h.Submitter, &h.Trace, &h.XID)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrInactive
	}
	return h, err
}

// End ends a job with the result of its run, and inserts the next step in the same transaction. A cancel request that was committed first
// takes precedence; End returns the state in which the job ended. A repeated call for the same epoch returns that state and writes nothing.
// End returns [ErrInactive] if the job was ended by other means or is in a different epoch.
func (b *Outbox) End(ctx context.Context, id, epoch int64, e End) (job.State, error) {
	return b.end(ctx, id, lastFence(epoch), e, false)
}

// end is like [Outbox.End]. If unstarted is true, it also returns [ErrInactive] if the run's start has been recorded.
func (b *Outbox) end(ctx context.Context, id, fence int64, e End, unstarted bool) (state job.State, err error) {
	end, state, err := b.inEpoch(ctx, id, fence, max(e.Attempts, 1)-1, e.Started, unstarted, func(tx pgx.Tx, h held) (*ended, error) {
		return b.finish(ctx, tx, id, fence, h, e)
	})
	if err != nil {
		return "", fmt.Errorf("end job %d, epoch %d: %w", id, fence/fencesPerEpoch, err)
	}
	if end != nil {
		state = end.State
		b.admit(ctx, end, append(store.Lines(end.Kind, end.Subject, end.Key), end.step...)...)
	}
	return state, nil
}

// inEpoch locks a job and calls do in the same transaction. It returns the end that do has made. If the engine has already ended the job in
// the same epoch, it returns the state instead. If the reply to the commit is lost, it tries again. The second attempt waits for the first to
// end, and finds its end in the table.
func (b *Outbox) inEpoch(ctx context.Context, id, fence int64, more int, started time.Time, unstarted bool,
	do func(pgx.Tx, held) (*ended, error)) (end *ended, state job.State, err error) {
	attempt := func(tx pgx.Tx) error {
		h, err := b.hold(ctx, tx, id, fence, more, started, unstarted)
		if errors.Is(err, ErrInactive) {
			var xid string
			if state, xid, err = b.endedBefore(ctx, tx, id, fence); end != nil && end.xid != xid {
				end = nil
			}
			return err
		}
		if end = nil; err != nil {
			return err
		}
		if end, err = do(tx, h); end != nil {
			end.xid = h.XID
		}
		return err
	}
	if err = b.s.Tx(ctx, attempt); store.Unknown(err) && ctx.Err() == nil {
		err = b.s.Tx(ctx, attempt)
	}
	return end, state, err
}

// ended is the end of a job, with the lines of the next step and the job to which the end has given the guard of the job's subject.
type ended struct {
	job.End
	xid  string // of the transaction
	step []store.Line
	heir *store.AdmittedJob
}

// admit admits the next jobs of lines, and reports an end unless it is nil. After an error, the poll of a pod admits the jobs.
func (b *Outbox) admit(ctx context.Context, end *ended, lines ...store.Line) {
	if len(lines) > 0 {
		jobs, _ := b.s.AdmitNext(ctx, lines...)
		if end != nil && end.heir != nil {
			jobs = append(jobs, *end.heir)
		}
		b.scan.forget()
		if len(jobs) > 0 && b.o.Admitted != nil {
			b.o.Admitted(jobs)
		}
	}
	if end != nil && b.o.Ended != nil {
		b.o.Ended(end.End)
	}
}

// endedBefore returns the state of a job that an earlier transaction has ended in the same epoch, and that transaction's id.
func (b *Outbox) endedBefore(ctx context.Context, tx pgx.Tx, id, fence int64) (state job.State, xid string, err error) {
	err = tx.QueryRow(ctx, b.s.In(endedHereSQL), id, fence, b.podID).Scan(&state, &xid)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrInactive
	}
	return state, xid, err
}

// finish ends a locked job, and wakes the pods for its next step and for jobs with the same subject or key.
func (b *Outbox) finish(ctx context.Context, tx pgx.Tx, id, fence int64, h held, e End) (*ended, error) {
	e.complete()
	if e.State != job.Succeeded {
		e.Next = nil
	}
	next := follow(id, h, e.Next)
	found, err := store.FinishIn(ctx, b.s, tx, b.podID, []store.Ending{{ID: id, Fence: fence, State: e.State, Outcome: e.Outcome, Reason: e.Reason,
		Result: e.Result, Error: e.Error, Class: e.Class, Code: e.Code, Undo: e.Undo, Next: next, Branch: h.Branch}})
	if err != nil {
		return nil, err
	}
	got, ok := found[id]
	if !ok {
		return nil, ErrInactive
	}
	if _, err := tx.Exec(ctx, b.s.In(doneWithSQL), id, fence); err != nil {
		return nil, err
	}
	if e.Next != nil || h.Subject != "" || h.Key != "" || got.OffBalance != nil {
		if err := b.s.Notify(ctx, tx); err != nil {
			return nil, err
		}
	}
	end := &ended{End: job.End{ID: id, PipelineID: h.PipelineID, Kind: h.Kind, Lane: h.Lane, Subject: h.Subject, Key: h.Key, Attempt: h.Attempt, State: got.State,
		Reason: e.Reason, Error: e.Error, ErrorClass: e.Class, ErrorCode: e.Code}, heir: got.Heir}
	if next != nil {
		end.step = store.Lines(next.Kind, next.Subject, next.Key)
	}
	if got.State == job.Cancelled && e.State != job.Cancelled {
		end.Reason, end.ErrorClass, end.ErrorCode = job.ReasonCancelled, "", ""
	}
	return end, nil
}

// complete sets the outcome, the reason and the class that the state requires.
func (e *End) complete() {
	switch e.State {
	case job.Succeeded:
		e.Outcome, e.Reason = cmp.Or(e.Outcome, job.OK), cmp.Or(e.Reason, job.ReasonOK)
	case job.Failed:
		e.Outcome, e.Reason, e.Class = cmp.Or(e.Outcome, job.Error), cmp.Or(e.Reason, job.ReasonError), cmp.Or(e.Class, job.ClassError)
	default:
		e.Outcome, e.Reason = cmp.Or(e.Outcome, job.Error), cmp.Or(e.Reason, job.ReasonCancelled)
	}
}

// follow completes the row of the step that follows a job.
func follow(id int64, h held, next *store.NewJob) *store.NewJob {
	if next == nil {
		return nil
	}
	n := *next
	if n.ParentID == nil {
		n.ParentID = &id
	}
	n.PipelineID, n.Step = cmp.Or(n.PipelineID, h.PipelineID), cmp.Or(n.Step, h.Step+1)
	n.Submitter, n.Trace = cmp.Or(n.Submitter, h.Submitter), cmp.Or(n.Trace, h.Trace)
	if n.Branch == (store.Branch{}) {
		n.Branch = h.Branch
	}
	if h.Step == 0 && n.Pipeline == nil {
		n.Pipeline = new(string) // a pipeline appears in lists once it has a second step
	}
	n.Starts = false
	return &n
}

// againSQL makes a locked job pending again, ahead of its lane's backlog, and increments its crash count. The job keeps its subject's guard. Plan:
// live_pkey, one row.
const againSQL = `
with again as (
	update trapeze.live l set state = 'pending', pod = null, crashes = l.crashes + 1, attempt = l.attempt - 1, ready_at = 'epoch',
		event_no = l.event_no + 1
	where l.id = $1 and l.fence = $2 and l.pod = $3::uuid
	returning l.*
)
insert into trapeze.job_events (job, event_no, claim_xid, fence, pod, from_state, to_state, event, level, message, fields)
select id, event_no, claim_xid, fence, $3::uuid, 'running', 'pending', 'job.recovered', 'warn', left($4, 500),
	json_build_object('reason', 'run_lost', 'engine', $5::text, 'crashes', crashes) from again`

// Again makes a job pending again because the engine has lost its run; why is the reason. The next claim starts a new epoch, so any later
// writes by the lost run are rejected. A lost run counts as a crash, and a job that reaches its crash limit fails. A job with a cancel
// request is cancelled instead. Again returns [ErrInactive] if the job is not in the given epoch.
func (b *Outbox) Again(ctx context.Context, id, epoch int64, why string) error {
	fence := lastFence(epoch)
	var lines []store.Line
	end, state, err := b.inEpoch(ctx, id, fence, 0, time.Time{}, false, func(tx pgx.Tx, h held) (*ended, error) {
		lines = store.Lines(h.Kind, h.Subject, h.Key)
		if h.Cancelled || h.Crashes+1 >= h.MaxCrashes {
			return b.finish(ctx, tx, id, fence, h, End{State: job.Failed, Reason: job.ReasonCrashed, Class: job.ClassCrashLimit, Error: why})
		}
		if _, err := tx.Exec(ctx, b.s.In(againSQL), id, fence, b.podID, why, b.o.Engine); err != nil {
			return nil, err
		}
		if _, err := tx.Exec(ctx, b.s.In(doneWithSQL), id, fence); err != nil {
			return nil, err
		}
		return nil, b.s.Notify(ctx, tx)
	})
	b.scan.forget() // the job may be pending even after an error
	if err == nil && end == nil && state != "" {
		err = ErrInactive
	}
	if err != nil {
		return fmt.Errorf("run job %d again after epoch %d: %w", id, epoch, err)
	}
	b.admit(ctx, end, lines...) // another job may have to precede this one now
	return nil
}
