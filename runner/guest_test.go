package runner_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

const owner = "gpu-team"

// far is a remote worker without a network: what is sent to it waits in a channel until the test says what becomes of it.
type far struct {
	id    string
	sent  chan runner.Assignment
	guest *runner.Guest
	cut   context.CancelFunc // its stream

	mu   sync.Mutex
	runs map[int64]runner.Assignment
}

func newFar() *far { return &far{id: uuid.NewString(), runs: map[int64]runner.Assignment{}} }

// connect opens the worker's stream to a pod.
func (w *far) connect(t *testing.T, to *runner.Runner, slots int, kinds ...string) {
	t.Helper()
	ctx, cut := context.WithCancel(context.Background())
	t.Cleanup(cut)
	w.cut, w.sent = cut, make(chan runner.Assignment, 100)
	sent := w.sent
	o := runner.GuestOptions{ID: w.id, Owner: owner, Slots: slots, Running: w.claims(), AckWithin: 500 * time.Millisecond,
		Send: func(a runner.Assignment) error { sent <- a; return ctx.Err() }}
	for _, kind := range kinds {
		o.Kinds = append(o.Kinds, runner.GuestKind{Name: kind})
	}
	var err error
	if w.guest, err = to.Receive(ctx, o); err != nil {
		t.Fatal(err)
	}
}

func (w *far) claims() (list []runner.GuestClaim) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.runs {
		list = append(list, claimOf(a))
	}
	return list
}

func claimOf(a runner.Assignment) runner.GuestClaim {
	return runner.GuestClaim{ID: a.ID, Fence: a.Fence, Token: a.Token}
}

// takes waits for a job and acknowledges it.
func (w *far) takes(t *testing.T, from *runner.Runner) runner.Assignment {
	t.Helper()
	select {
	case a := <-w.sent:
		w.mu.Lock()
		w.runs[a.ID] = a
		w.mu.Unlock()
		w.beats(t, from)
		return a
	case <-time.After(10 * time.Second):
		t.Fatal("no job was sent")
	}
	return runner.Assignment{}
}

func (w *far) beats(t *testing.T, to *runner.Runner) map[int64]runner.GuestVerdict {
	t.Helper()
	var b runner.GuestBeat
	for _, c := range w.claims() {
		b.Running = append(b.Running, runner.GuestListed{GuestClaim: c})
	}
	list, err := to.Heard(t.Context(), w.id, owner, b)
	if err != nil {
		t.Fatal(err)
	}
	said := map[int64]runner.GuestVerdict{}
	for _, v := range list {
		said[v.ID] = v
	}
	return said
}

func (w *far) reports(t *testing.T, to *runner.Runner, a runner.Assignment, o *runner.Outcome, failure error) (bool, error) {
	t.Helper()
	duplicate, err := to.Reported(t.Context(), w.id, owner, runner.GuestReport{GuestClaim: claimOf(a), Outcome: o, Err: failure})
	if err == nil {
		w.mu.Lock()
		delete(w.runs, a.ID)
		w.mu.Unlock()
	}
	return duplicate, err
}

// keepBeating sends heartbeats until the test ends or stop is called.
func (w *far) keepBeating(t *testing.T, to *runner.Runner) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var beating sync.WaitGroup
	beating.Go(func() {
		for tick := time.NewTicker(100 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
				var b runner.GuestBeat
				for _, c := range w.claims() {
					b.Running = append(b.Running, runner.GuestListed{GuestClaim: c})
				}
				_, _ = to.Heard(ctx, w.id, owner, b)
			}
		}
	})
	stop = sync.OnceFunc(func() { cancel(); beating.Wait() })
	t.Cleanup(stop)
	return stop
}

// noKinds are the options of a pod that has handlers of no kind that the workers run.
var noKinds = map[string]does{"local": nothing}

func foreign(t *testing.T, r *runner.Runner, args job.Args, options ...runner.EnqueueOption) int64 {
	return enqueue(t, r, args, append(options, runner.Foreign())...)
}

func TestARemoteWorkerIsSentWhatItRunsAndItsReportEndsTheJob(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, noKinds)
	w := newFar()
	w.connect(t, r, 2, "far")
	w.keepBeating(t, r)

	id := foreign(t, r, of("far", `{"n":1}`))
	a := w.takes(t, r)
	is.Equal(a.ID, id)
	is.Equal(a.Fence, int64(1))
	is.Equal(a.Attempt, 1)
	is.Equal(string(a.Args), `{"n":1}`)
	is.Equal(get(t, r, id).State, job.Running) // it ran and was leased before it was sent

	duplicate, err := w.reports(t, r, a, runner.Done(map[string]int{"n": 2}), nil)
	is.NoErr(err)
	is.True(!duplicate)
	is.Equal(get(t, r, id).State, job.Succeeded) // the report was answered after the commit
	is.Equal(string(get(t, r, id).Result), `{"n":2}`)

	duplicate, err = w.reports(t, r, a, runner.Done(map[string]int{"n": 2}), nil)
	is.NoErr(err)
	is.True(duplicate) // the same report again
	_, err = w.reports(t, r, a, runner.Done(map[string]int{"n": 3}), nil)
	is.True(errors.Is(err, job.ErrLeaseLost)) // another result is not
}

func TestTheNextStepGoesBackToTheSameRemoteWorkerAtOnce(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, noKinds)
	w, other := newFar(), newFar()
	w.connect(t, r, 1, "far")
	w.keepBeating(t, r)
	first := foreign(t, r, of("far"), runner.Subject("s"))
	a := w.takes(t, r)
	other.connect(t, r, 5, "far")
	other.keepBeating(t, r)
	_, err := w.reports(t, r, a, runner.Then(of("far"), runner.Foreign()), nil)
	is.NoErr(err)
	b := w.takes(t, r)
	is.Equal(b.Path, "fast") // born running, in the commit that ended its parent
	is.Equal(b.ParentID, first)
	is.Equal(b.Subject, "s")
	_, err = w.reports(t, r, b, nil, nil)
	is.NoErr(err)
	is.Equal(get(t, r, b.ID).State, job.Succeeded)
}

func TestARemoteWorkerIsSentNoMoreThanItsFreeSlots(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, noKinds)
	for range 10 {
		foreign(t, r, of("far"))
	}
	w := newFar()
	w.connect(t, r, 3, "far")
	w.keepBeating(t, r)
	var list []runner.Assignment
	for range 3 {
		list = append(list, w.takes(t, r))
	}
	is.Equal(one[int](t, pool, `select count(*) from trapeze.live where state = 'running'`), 3)
	is.Equal(len(w.sent), 0) // nothing waits for it beyond its slots
	_, err := w.reports(t, r, list[0], nil, nil)
	is.NoErr(err)
	w.takes(t, r)
	is.Equal(one[int](t, pool, `select count(*) from trapeze.live where state = 'running'`), 3)
}

func TestWhatARemoteWorkerDoesNotAcknowledgeIsGivenBackUnspent(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, noKinds)
	w := newFar()
	w.connect(t, r, 1, "far")
	id := foreign(t, r, of("far"))
	lost := <-w.sent // never to be listed
	j := inState(t, r, id, job.Pending)
	is.Equal(j.Attempt, 0) // no attempt is spent
	is.Equal(j.Crashes, 0)

	w.connect(t, r, 1, "far")
	a := w.takes(t, r)
	is.Equal(a.ID, id)
	is.Equal(a.Attempt, 1)
	is.True(a.Fence > lost.Fence) // whoever got the first one after all cannot end it
	_, err := w.reports(t, r, lost, nil, nil)
	is.True(errors.Is(err, job.ErrLeaseLost))
	_, err = w.reports(t, r, a, nil, nil)
	is.NoErr(err)
}

func TestTheJobsOfARemoteWorkerThatIsNotHeardOfRunElsewhere(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	o := runner.Options{LeaseFor: time.Second, HeartbeatEvery: 100 * time.Millisecond}
	r := start(t, pool, o, noKinds)
	w := newFar()
	w.connect(t, r, 1, "far")
	id := foreign(t, r, of("far"))
	old := w.takes(t, r) // and is frozen
	second := newFar()
	second.connect(t, r, 1, "far")
	second.keepBeating(t, r)
	a := second.takes(t, r)
	is.Equal(a.ID, id)
	is.Equal(a.Crashes, 1) // a worker that dies counts, as a pod that dies does
	_, err := w.reports(t, r, old, nil, nil)
	is.True(errors.Is(err, job.ErrLeaseLost)) // it wakes up too late
	pgtest.Wait(t, "it is told to begin anew", func() bool {
		_, err = r.Heard(t.Context(), w.id, owner, runner.GuestBeat{})
		return errors.Is(err, runner.ErrGuestClosed)
	})
	_, err = second.reports(t, r, a, nil, nil)
	is.NoErr(err)
}

func TestARemoteWorkerKeepsItsJobsOnAnotherPod(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	o := runner.Options{LeaseFor: 2 * time.Second, HeartbeatEvery: 100 * time.Millisecond}
	first, second := start(t, pool, o, noKinds), start(t, pool, o, noKinds)
	w := newFar()
	w.connect(t, first, 2, "far")
	id := foreign(t, first, of("far"))
	a := w.takes(t, first)
	w.cut()
	w.connect(t, second, 2, "far")
	stop := w.keepBeating(t, second)
	select {
	case <-w.sent:
		t.Fatal("it was sent what it runs already")
	case <-time.After(3 * time.Second): // longer than a lease
	}
	is.Equal(get(t, second, id).Fence, a.Fence) // the claim is the same
	duplicate, err := w.reports(t, second, a, runner.Then(of("far"), runner.Foreign()), nil)
	is.NoErr(err)
	is.True(!duplicate)
	b := w.takes(t, second)
	is.Equal(b.Path, "fast") // the pod that took the worker over hands over to it as the first one would
	stop()
	w.keepBeating(t, first) // that has no stream of it: the lease is the table's
	pgtest.Wait(t, "the lease goes on by heartbeats to another pod", func() bool {
		return one[bool](t, pool, `select now() - claimed_at > interval '3 seconds' from trapeze.live where id = $1`, b.ID)
	})
	is.Equal(get(t, second, b.ID).Crashes, 0)
	duplicate, err = w.reports(t, first, b, runner.Then(of("far"), runner.Foreign()), nil) // and so do reports
	is.NoErr(err)
	is.True(!duplicate)
	is.Equal(get(t, first, b.ID).State, job.Succeeded)
	w.takes(t, first)
}

func TestARemoteWorkerCanSayNothingOfAnothersJob(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}, noKinds)
	w, other := newFar(), newFar()
	w.connect(t, r, 1, "far")
	w.keepBeating(t, r)
	foreign(t, r, of("far"))
	a := w.takes(t, r)
	other.connect(t, r, 1, "none")
	_, err := other.reports(t, r, a, nil, nil)
	is.True(errors.Is(err, runner.ErrWrongToken)) // a token is of one worker
	_, err = r.Reported(t.Context(), w.id, "somebody", runner.GuestReport{GuestClaim: claimOf(a)})
	is.True(errors.Is(err, runner.ErrGuestClosed)) // and a worker is of one principal
	_, err = r.Heard(t.Context(), w.id, "somebody", runner.GuestBeat{})
	is.True(errors.Is(err, runner.ErrGuestClosed))
	_, err = r.Receive(t.Context(), runner.GuestOptions{ID: w.id, Owner: "somebody", Slots: 1, Kinds: []runner.GuestKind{{Name: "far"}}, Send: func(runner.Assignment) error { return nil }})
	is.True(errors.Is(err, runner.ErrGuestClosed))
	forged := a
	forged.Token = append([]byte{}, a.Token...)
	forged.Token[0] ^= 1
	_, err = w.reports(t, r, forged, nil, nil)
	is.True(errors.Is(err, runner.ErrWrongToken))
	is.Equal(get(t, r, a.ID).State, job.Running)
}

func TestARemoteWorkerIsToldOfACancelAndAStop(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, noKinds)
	w := newFar()
	w.connect(t, r, 2, "far")
	w.keepBeating(t, r)
	foreign(t, r, of("far"))
	a := w.takes(t, r)
	_, err := r.Cancel(t.Context(), a.ID, "ops")
	is.NoErr(err)
	pgtest.Wait(t, "the heartbeat tells of the cancel", func() bool { return errors.Is(w.beats(t, r)[a.ID].Cause, job.ErrCancelled) })
	_, err = w.reports(t, r, a, nil, errors.New("ended early"))
	is.NoErr(err)
	is.Equal(get(t, r, a.ID).State, job.Cancelled)

	foreign(t, r, of("far"))
	b := w.takes(t, r)
	_, err = r.Stop(t.Context(), b.ID, "ops")
	is.NoErr(err)
	is.Equal(get(t, r, b.ID).State, job.Cancelled)
	is.True(w.beats(t, r)[b.ID].Lost) // it is not the worker's any more
	_, err = w.reports(t, r, b, nil, nil)
	is.True(errors.Is(err, job.ErrLeaseLost))
}

func TestAPausedGateSendsARemoteWorkerNothing(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, noKinds)
	w := newFar()
	w.connect(t, r, 2, "far")
	w.keepBeating(t, r)
	foreign(t, r, of("far"))
	a := w.takes(t, r)
	_, err := r.Pause(t.Context(), "ops")
	is.NoErr(err)
	id := foreign(t, r, of("far"))
	select {
	case <-w.sent:
		t.Fatal("a job was sent while the gate was closed")
	case <-time.After(1500 * time.Millisecond):
	}
	is.Equal(w.beats(t, r)[a.ID].Cause, nil) // what runs goes on
	_, err = r.Unpause(t.Context(), "ops")
	is.NoErr(err)
	is.Equal(w.takes(t, r).ID, id)
}
