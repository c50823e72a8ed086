package outbox

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

var (
	seed      = flag.Uint64("outbox.seed", 0, "run only this history")
	histories = flag.Int("outbox.histories", 12, "number of random histories")
)

// TestRandomEngineHistories plays random histories of forwarders, runs, operators and an in-memory workflow service. The service
// accepts each workflow id once, forgets closed runs after a retention period, and sometimes loses an open run. Each actor takes one step
// at a time, so that it can pause or die between any two steps.
func TestRandomEngineHistories(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	happened := map[string]int{}
	for n := range uint64(*histories) {
		number := n + 1
		if *seed != 0 {
			number = *seed
		}
		h := &history{world: w, t: t, rand: rand.New(rand.NewPCG(number, 38)), service: service{open: map[string]*run{}, closed: map[string]*run{}},
			executed: map[epoch]string{}, fences: map[int64]int64{}, retries: map[int64]int{}, happened: happened} // #nosec G404 -- a repeatable history
		h.play()
		if t.Failed() {
			t.Fatalf("history %d failed; repeat it with -outbox.seed=%d", number, number)
		}
		if *seed != 0 {
			return
		}
	}
	t.Log(happened)
	for _, what := range []string{"started", "already started", "start forgotten", "refused", "executed", "ended", "end repeated", "end refused",
		"lost", "again", "closed without an end", "cancelled", "stopped", "cancel delivered", "retried"} {
		if happened[what] == 0 {
			t.Errorf("%q never happened, so it was not tested", what)
		}
	}
}

// service is a workflow service. It rejects a run whose workflow id belongs to a run that it still knows.
type service struct {
	open, closed map[string]*run // by workflow id
	runs         int
}

type run struct {
	workflow, id string
	item         Item
	cancelled    bool
	step         int  // the next step of the run's code
	lost         bool // the service has lost it, but its worker still runs
}

var errAlreadyStarted = errors.New("workflow id in use")

func workflow(id, epoch int64) string { return fmt.Sprintf("trapeze-%d-%d", id, epoch) }

// start starts a run, or returns the id of the run that has the workflow id.
func (s *service) start(i Item) (*run, error) {
	id := workflow(i.ID, i.Epoch())
	for _, known := range []map[string]*run{s.open, s.closed} {
		if r := known[id]; r != nil {
			return r, errAlreadyStarted
		}
	}
	s.runs++
	r := &run{workflow: id, id: "run-" + strconv.Itoa(s.runs), item: i}
	s.open[id] = r
	return r, nil
}

func (s *service) close(r *run) {
	if s.open[r.workflow] == r {
		delete(s.open, r.workflow)
		s.closed[r.workflow] = r
	}
}

type epoch struct{ id, epoch int64 }

type history struct {
	*world
	t       testing.TB
	rand    *rand.Rand
	service service
	held    []Item   // jobs taken by forwarders that have not started them yet
	started []*run   // runs started by forwarders that have not recorded them yet
	working []*run   // all runs whose code has not ended, including lost ones
	asked   []Cancel // requests read by forwarders that have not passed them on yet

	ids      []int64
	executed map[epoch]string // the run that called handlers in an epoch
	fences   map[int64]int64  // the highest fence of each job's handlers
	retries  map[int64]int    // operator retries of each job
	happened map[string]int
}

// play takes random steps, and then lets all runs and jobs finish.
func (h *history) play() {
	h.ids = h.put(plain, plain, about("s"), about("s"), plain)
	steps := []func(){h.due, h.startOne, h.recordOne, h.work, h.work, h.askCancels, h.passCancel, h.askCancels, h.passCancel, h.passCancel, h.reconcile, h.forget, h.lose, h.die, h.cancel, h.retry}
	for range 150 {
		steps[h.rand.IntN(len(steps))]()
		if h.t.Failed() {
			return
		}
	}
	for try := 0; h.count(`select count(*) from trapeze.live where lane = 'video'`) > 0 || len(h.working) > 0; try++ {
		if try == 200 || h.t.Failed() {
			h.t.Errorf("the jobs do not end: %d live", h.count(`select count(*) from trapeze.live`))
			return
		}
		for _, step := range []func(){h.due, h.startOne, h.recordOne, h.work, h.askCancels, h.passCancel, h.reconcile} {
			step()
		}
	}
	h.due() // removes stopped jobs' rows from the outbox
	h.reconcile()
	h.check()
}

func pick[T any](h *history, list []T) (i int, ok bool) {
	if len(list) == 0 {
		return 0, false
	}
	return h.rand.IntN(len(list)), true
}

func (h *history) note(what string) { h.happened[what]++ }

// due makes a forwarder read jobs to start.
func (h *history) due() {
	list, err := h.Outbox.Due(h.t.Context(), 2)
	h.is.NoErr(err)
	h.held = append(h.held, list...)
}

// startOne makes a forwarder start a run, possibly long after it read the job.
func (h *history) startOne() {
	n, ok := pick(h, h.held)
	if !ok {
		return
	}
	i := h.held[n]
	if h.rand.IntN(4) > 0 { // otherwise a second forwarder has read the same job
		h.held = slices.Delete(h.held, n, n+1)
	}
	r, err := h.service.start(i)
	if err != nil {
		h.note("already started")
	} else {
		h.note("started")
		if _, executed := h.executed[epoch{i.ID, i.Epoch()}]; executed {
			h.note("start forgotten")
		}
		h.working = append(h.working, r)
	}
	h.started = append(h.started, r)
}

// recordOne makes a forwarder record that a run has started.
func (h *history) recordOne() {
	n, ok := pick(h, h.started)
	if !ok {
		return
	}
	r := h.started[n]
	h.started = slices.Delete(h.started, n, n+1)
	if err := h.Started(h.t.Context(), r.item.ID, r.item.Epoch(), r.id); !errors.Is(err, ErrInactive) {
		h.is.NoErr(err)
	}
}

// work makes a run take its next step: it records its start, calls its handler, or reports the end.
func (h *history) work() {
	n, ok := pick(h, h.working)
	if !ok {
		return
	}
	r := h.working[n]
	over := func() { h.working = slices.Delete(h.working, n, n+1); h.service.close(r) }
	switch r.step++; r.step {
	case 1:
		err := h.Started(h.t.Context(), r.item.ID, r.item.Epoch(), r.id)
		if errors.Is(err, ErrInactive) {
			h.note("refused")
			over()
			return
		}
		h.is.NoErr(err)
	case 2:
		h.execute(r)
	case 3:
		if h.rand.IntN(8) == 0 { // a person terminates the workflow
			h.note("closed without an end")
			over()
			return
		}
		h.report(r)
	default: // the reply to the first report was lost
		h.note("end repeated")
		h.report(r)
		over()
	}
}

// execute calls the handler of a run. Only one run may execute in an epoch, and the epoch's fences must be higher than all earlier ones.
func (h *history) execute(r *run) {
	h.note("executed")
	at := epoch{r.item.ID, r.item.Epoch()}
	if by, ok := h.executed[at]; ok {
		h.t.Errorf("job %d executes twice in epoch %d: in %s and in %s", at.id, at.epoch, by, r.id)
	}
	h.executed[at] = r.id
	for attempt := range 2 {
		fence := Fence(at.epoch, attempt+1)
		if !r.lost && fence <= h.fences[at.id] {
			h.t.Errorf("job %d: fence %d does not rise above %d", at.id, fence, h.fences[at.id])
		}
		h.fences[at.id] = max(h.fences[at.id], fence)
	}
}

func (h *history) report(r *run) {
	e := End{State: job.Succeeded, Result: json.RawMessage(strconv.Quote(r.id))}
	if h.rand.IntN(3) == 0 {
		e = End{State: job.Failed, Error: r.id}
	}
	_, err := h.End(h.t.Context(), r.item.ID, r.item.Epoch(), e)
	if errors.Is(err, ErrInactive) {
		h.note("end refused")
		return
	}
	h.is.NoErr(err)
	h.note("ended")
}

func (h *history) askCancels() {
	list, err := h.Cancels(h.t.Context(), 3)
	h.is.NoErr(err)
	h.asked = append(h.asked, list...)
	if len(list) > 0 {
		h.note("cancel read")
	}
}

// passCancel makes a forwarder pass a cancel request on to the service and remove it.
func (h *history) passCancel() {
	n, ok := pick(h, h.asked)
	if !ok {
		return
	}
	c := h.asked[n]
	h.asked = slices.Delete(h.asked, n, n+1)
	if r := h.service.open[workflow(c.ID, c.Epoch())]; r != nil {
		h.note("cancel delivered")
		if r.cancelled = true; c.Reason == job.ReasonForceCancelled {
			h.working = slices.DeleteFunc(h.working, func(w *run) bool { return w == r })
			h.service.close(r)
		}
	}
	h.is.NoErr(h.Delivered(h.t.Context(), c))
}

// reconcile makes a reconciler ask the service about the recorded runs.
func (h *history) reconcile() {
	list, err := h.Outbox.Lost(h.t.Context(), soon, 10)
	h.is.NoErr(err)
	for _, i := range list {
		id := workflow(i.ID, i.Epoch())
		switch {
		case h.service.open[id] != nil:
		case h.service.closed[id] != nil:
			_, err = h.End(h.t.Context(), i.ID, i.Epoch(), End{State: job.Failed, Error: "the workflow was terminated"})
		default:
			h.note("again")
			err = h.Again(h.t.Context(), i.ID, i.Epoch(), "the workflow does not exist")
		}
		if !errors.Is(err, ErrInactive) {
			h.is.NoErr(err)
		}
	}
}

// forget makes the service forget a closed run whose retention has ended.
func (h *history) forget() {
	if n, ok := pick(h, slices.Sorted(maps.Keys(h.service.closed))); ok {
		delete(h.service.closed, slices.Sorted(maps.Keys(h.service.closed))[n])
	}
}

// lose makes the service lose an open run, as in a failover. The run's worker does not notice.
func (h *history) lose() {
	if n, ok := pick(h, slices.Sorted(maps.Keys(h.service.open))); ok && h.rand.IntN(5) == 0 {
		id := slices.Sorted(maps.Keys(h.service.open))[n]
		h.service.open[id].lost = true
		delete(h.service.open, id)
		h.note("lost")
	}
}

// die kills a forwarder, and everything that it has read is lost.
func (h *history) die() {
	if h.rand.IntN(3) > 0 {
		return
	}
	if n, ok := pick(h, h.held); ok {
		h.held = slices.Delete(h.held, n, n+1)
	}
	if n, ok := pick(h, h.started); ok {
		h.started = slices.Delete(h.started, n, n+1)
	}
	if n, ok := pick(h, h.asked); ok {
		h.asked = slices.Delete(h.asked, n, n+1)
	}
}

// cancel makes an operator cancel or stop a job.
func (h *history) cancel() {
	if h.rand.IntN(2) > 0 {
		return
	}
	stop := h.rand.IntN(3) == 0
	defer h.poll()
	_, err := admin.Cancel(h.t.Context(), h.Store, h.ids[h.rand.IntN(len(h.ids))], 0, stop, "ana", func(job.Lease) {})
	switch {
	case errors.Is(err, job.ErrAlreadyTerminal):
	case stop:
		h.note("stopped")
	default:
		h.note("cancelled")
	}
}

// poll does what the poll of a pod does after a command: it promotes due jobs and admits the next jobs of subjects.
func (h *history) poll() {
	_, _, err := h.Promote(h.t.Context(), 10)
	h.is.NoErr(err)
	_, err = h.AdmitMissed(h.t.Context())
	h.is.NoErr(err)
}

// retry makes an operator retry a job that has failed or was cancelled.
func (h *history) retry() {
	id := h.ids[h.rand.IntN(len(h.ids))]
	if _, err := admin.Retry(h.t.Context(), h.Store, id, nil, "ana"); err == nil {
		h.retries[id]++
		h.poll()
		h.note("retried")
	}
}

// check compares the tables with the history: each job has ended once after its submission and once after each retry, with the result of
// the run that executed its last epoch.
func (h *history) check() {
	for _, id := range h.ids {
		ends := h.count(`select count(*) from trapeze.job_events e where $1 = any(coalesce(e.jobs, array[e.job])) and e.to_state in ('succeeded', 'failed', 'cancelled')`, id)
		if want := 1 + h.retries[id]; ends != want {
			h.t.Errorf("job %d has ended %d times, want %d", id, ends, want)
		}
		if n := h.count(`select count(*) from trapeze.done where id = $1`, id); n != 1 {
			h.t.Errorf("job %d has %d rows in done", id, n)
		}
		var state, by string
		var fence int64
		h.is.NoErr(h.Pool().QueryRow(h.t.Context(), `select state, fence, coalesce(result #>> '{}', '') from trapeze.done where id = $1`, id).Scan(&state, &fence, &by))
		if state == string(job.Succeeded) && h.executed[epoch{id, fence / fencesPerEpoch}] != by {
			h.t.Errorf("job %d has the result of %s, but %s executed epoch %d", id, by, h.executed[epoch{id, fence / fencesPerEpoch}], fence/fencesPerEpoch)
		}
	}
	for _, rest := range []string{`trapeze.outbox`, `trapeze.live`, `trapeze.subjects where state = 'held'`} {
		if n := h.count(`select count(*) from ` + rest); n != 0 {
			h.t.Errorf("%d rows are left in %s", n, rest)
		}
	}
}
