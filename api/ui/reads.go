package ui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/doctor"
	"github.com/trapeze-run/trapeze/internal/failures"
	"github.com/trapeze-run/trapeze/internal/store"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// reader reads the data for the pages. It returns only jobs and pipelines that the visitor may see. Concurrent requests share the data that
// is the same for all visitors.
type reader struct {
	o        Options
	first    *store.Store // for the first page of a list
	calendar shared[[]job.ScheduleUse]
	board    shared[board]
	slots    shared[[]storeview.BoardSlots]
	queue    shared[job.QueueState]
	clock    shared[clockRead]
	findings shared[[]doctor.Finding]
	keys     shared[job.KeysInUse]
	stats    map[string]*shared[numbers]       // by period
	failed   map[string]*shared[failures.List] // by period
	byKind   map[string]*shared[kindsRead]     // by period
}

// clockRead is a reading of the database's clock.
type clockRead struct{ at, read time.Time }

// now returns the database's time, to which pages compare the times of jobs.
func (rd *reader) now(ctx context.Context) (time.Time, error) {
	c, err := rd.clock.get(ctx, false, func(ctx context.Context) (clockRead, error) {
		at, err := storeview.Now(ctx, rd.o.Store)
		return clockRead{at, time.Now()}, err
	})
	return c.at.Add(time.Since(c.read)), err
}

// numbers holds the statistics of finished jobs by kind and by lane. Concurrent requests share one read.
type numbers struct{ Stats, lanes job.Stats }

// kindsRead holds the kinds and their statistics for a period.
type kindsRead struct {
	kinds []job.KindUse
	ended job.Stats
}

func newReader(o Options) *reader {
	rd := &reader{o: o, first: o.Store.Searching(firstPage), stats: map[string]*shared[numbers]{}, byKind: map[string]*shared[kindsRead]{},
		failed: map[string]*shared[failures.List]{"all": {}}}
	for _, w := range storeview.StatsWindows {
		rd.stats[w.Name], rd.byKind[w.Name] = &shared[numbers]{}, &shared[kindsRead]{}
	}
	for _, since := range sinces {
		rd.failed[since.Value] = &shared[failures.List]{}
	}
	return rd
}

func (rd *reader) queueState(ctx context.Context, fresh bool) (job.QueueState, error) {
	return rd.queue.get(ctx, fresh, func(ctx context.Context) (job.QueueState, error) { return storeview.Queue(ctx, rd.o.Store) })
}

// mustSee returns an error if a job belongs to another principal. The error is the same as for a job that does not exist.
func (rd *reader) mustSee(ctx context.Context, p access.Principal, id int64) error {
	if p.Owner(access.JobsRead) == "" {
		return nil
	}
	owner, err := storeview.Owner(ctx, rd.o.Store, id)
	if err == nil && owner != p.Name {
		err = fmt.Errorf("read job %d: %w", id, job.ErrNotFound)
	}
	return err
}

// These are the limits on the jobs and pods that a page reads.
const (
	mostGroups   = 100
	mostRunning  = 1_000 // running jobs that are read and counted
	mostShown    = 100   // running jobs that are shown
	mostPods     = 1_000 // pods that are read and counted, open ones first; all open ones read are shown
	mostClosed   = 200   // once this many pods are shown, closed pods are omitted
	mostBranches = 6     // children of a fan-out that are running or have failed
	mostEvents   = 500
)

// readBoard reads the data for the overview.
func (rd *reader) readBoard(r *http.Request) (board, error) {
	return rd.board.get(r.Context(), fresh(r), func(ctx context.Context) (b board, err error) {
		s := rd.o.Store
		now, err := storeview.StatusUpTo(ctx, s, storeview.StatusLimits{Waiting: mostCounted, Pods: mostPods, Running: mostRunning})
		errs := []error{err}
		b.Waiting, b.Parked, err = storeview.BoardWaiting(ctx, s, mostLooked, mostCounted, mostGroups)
		errs = append(errs, err)
		b.Approvals, err = storeview.BoardApprovals(ctx, s, perPage)
		errs = append(errs, err)
		rd.o.EngineUse(ctx, now.Lanes)
		b.Queue = now.Queue
		for _, l := range now.Lanes {
			b.Lanes, b.Used = append(b.Lanes, lane{l}), b.Used+l.Running
		}
		for i, p := range now.Pods { // open pods first
			if i >= mostClosed && p.ClosedAt != nil {
				break
			}
			b.Pods = append(b.Pods, pod{p, p.ClosedAt == nil && p.LeaseUntil.Before(now.At)})
		}
		b.overlay()
		b.Running = now.Running[:min(len(now.Running), mostShown)]
		return b, errors.Join(errs...)
	})
}

func (rd *reader) readTree(ctx context.Context, who access.Principal, id int64) (t tree, err error) {
	if err := rd.mustSee(ctx, who, id); err != nil {
		return t, err
	}
	t.Tree, err = storeview.ReadTree(ctx, rd.o.Store, id, storeview.TreeLimits{Children: mostBranches, Latest: mostSteps, Flat: true})
	t.Planned = job.Following(t.Pipeline.Planned)
	return t, err
}

// shownJob reads a job, with the values masked that the visitor may not see.
func (rd *reader) shownJob(r *http.Request, p *page, id int64) (j job.JobRow, err error) {
	if err := rd.mustSee(r.Context(), p.Principal, id); err != nil {
		return j, err
	}
	if j, err = storeview.Job(r.Context(), rd.o.Store, id); err != nil {
		return j, err
	}
	return rd.o.Shown(r, p.Principal, j)
}

func (rd *reader) readHistory(ctx context.Context, who access.Principal, id int64) (h history, err error) {
	if err := rd.mustSee(ctx, who, id); err != nil {
		return h, err
	}
	if h.JobRow, err = storeview.Job(ctx, rd.o.Store, id); err != nil {
		return h, err
	}
	h.Missing = max(h.EventNo-mostEvents, 0)
	if h.Events, err = storeview.JobEvents(ctx, rd.o.Store, id, h.Missing, mostEvents); err != nil {
		return h, err
	}
	if h.Fan, err = storeview.FanOutOf(ctx, rd.o.Store, id, 0); err != nil {
		return h, err
	}
	for _, e := range h.Events {
		if e.Event == "job.followed" {
			h.Followed = append(h.Followed, fieldIn(e.Fields, "job"))
		}
		if h.Pod != nil && e.PodID != nil && *e.PodID == *h.Pod && e.Pod != nil {
			h.PodName = *e.Pod
		}
	}
	if h.Worker, err = rd.readWorker(ctx, h.Pod); err != nil {
		return h, err
	}
	h.InChain = h.ParentID != nil || h.Fan != nil || len(job.Following(h.Planned)) > 0 || h.Step > 0
	if !h.InChain {
		p, err := storeview.Pipeline(ctx, rd.o.Store, h.PipelineID)
		if err != nil && !errors.Is(err, job.ErrNotFound) {
			return h, err
		}
		h.InChain = err == nil && p.LastJob != h.ID
	}
	return h, nil
}

// readWorker returns a remote worker's row, or nil for a pod.
func (rd *reader) readWorker(ctx context.Context, podID *string) (*store.WorkerRow, error) {
	if podID == nil {
		return nil, nil
	}
	g, err := store.Worker(ctx, rd.o.Store, *podID)
	if errors.Is(err, job.ErrNotFound) {
		return nil, nil
	}
	return &g, err
}

// formChoices holds the kinds and lanes that forms offer.
type formChoices struct {
	Kinds []string // kinds that at least one pod handles
	Lanes []string
}

func (rd *reader) formChoices(r *http.Request) (c formChoices, err error) {
	b, err := rd.readBoard(r)
	for _, l := range b.Lanes {
		if !l.IsTemplate() {
			c.Lanes = append(c.Lanes, l.Name)
		}
	}
	for _, p := range b.Pods {
		if p.ClosedAt == nil {
			c.Kinds = append(c.Kinds, p.Kinds...)
		}
	}
	slices.Sort(c.Kinds)
	c.Kinds = slices.Compact(c.Kinds)
	return c, err
}

// firstPage limits how long a list's first page searches, so that the page appears immediately. Searching further back takes longer, but
// happens only on request.
const firstPage = 100 * time.Millisecond

// searching returns the store to use for reading the list page that begins at a cursor.
func (rd *reader) searching(cursor string) *store.Store {
	if cursor == "" {
		return rd.first
	}
	return rd.o.Store
}

// shared holds a result that concurrent requests share; the first request reads it. A singleflight group would not work: a request for
// fresh data could join a read that began earlier, cancelling the first request would fail all the others, and nothing would be cached.
type shared[T any] struct {
	mu    sync.Mutex
	value T
	until time.Time
}

// Pages share a result for a little less than a second, the shortest interval at which a page's script refreshes it. A result that is slow
// to read is shared for longer, so that reads occupy at most a fifth of one connection's time.
const (
	sharedFor   = 900 * time.Millisecond
	sharedTimes = 5
)

// get returns the cached result if it is recent, or else reads a new one. If fresh is true, it always reads a new one. Errors are not
// cached.
func (s *shared[T]) get(ctx context.Context, fresh bool, read func(context.Context) (T, error)) (T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	began := time.Now()
	if !fresh && began.Before(s.until) {
		return s.value, nil
	}
	value, err := read(ctx)
	if err != nil {
		return value, err
	}
	now := time.Now()
	s.value, s.until = value, began.Add(max(sharedFor, sharedTimes*now.Sub(began)))
	return value, nil
}

// fresh reports whether a request must not get a shared result. The page's script sends such a request after a button press, so that the
// page shows the effect.
func fresh(r *http.Request) bool { return r.Header.Get("X-Fresh") != "" }
