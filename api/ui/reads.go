package ui

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/store"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// The functions in this file read the data for the pages. They return only jobs and pipelines that the visitor may see.

// mustSee returns an error if a job belongs to another principal. The error is the same as for a job that does not exist.
func (d *dashboard) mustSee(ctx context.Context, p access.Principal, id int64) error {
	if p.Owner(access.JobsRead) == "" {
		return nil
	}
	owner, err := storeview.Owner(ctx, d.o.Store, id)
	if err == nil && owner != p.Name {
		err = fmt.Errorf("read job %d: %w", id, job.ErrNotFound)
	}
	return err
}

// These limits apply to the jobs that a page shows and counts.
const (
	mostCounted  = 10_000 // waiting jobs in each lane, and parked jobs
	mostLooked   = 1_000  // due jobs in each lane for which a page determines why they are waiting
	mostGroups   = 100
	mostRunning  = 1_000 // running jobs that are read and counted
	mostShown    = 100   // running jobs that are shown
	mostPods     = 200
	mostBranches = 6 // children of a fan-out that are running or have failed
	mostEvents   = 500
	perPage      = 50
)

// board is the content of the overview.
type board struct {
	Queue     job.QueueState
	Lanes     []lane
	Pods      []pod
	Running   []job.Slot
	Used      int // slots used by all running jobs
	Waiting   []storeview.BoardWait
	Parked    []storeview.BoardWait
	Approvals []storeview.BoardApproval
}

// lane is a lane with the methods that templates use.
type lane struct{ job.LaneUse }

// pod is a pod with the data and methods that templates use.
type pod struct {
	job.Pod
	Lapsed bool // the lease has expired, but the pod is not closed yet
}

// readBoard reads the content of the overview. After a button press, the page's script sets the X-Fresh header, so that the page shows the
// result and not a cached response.
func (d *dashboard) readBoard(r *http.Request) (board, error) {
	return d.board.get(r.Context(), r.Header.Get("X-Fresh") != "", func(ctx context.Context) (b board, err error) {
		s := d.o.Store
		now, err := storeview.StatusUpTo(ctx, s, storeview.StatusLimits{Waiting: mostCounted, Pods: mostPods, Running: mostRunning})
		errs := []error{err}
		b.Waiting, b.Parked, err = storeview.BoardWaiting(ctx, s, mostLooked, mostCounted, mostGroups)
		errs = append(errs, err)
		b.Approvals, err = storeview.BoardApprovals(ctx, s, perPage)
		errs = append(errs, err)
		d.o.EngineUse(ctx, now.Lanes)
		b.Queue = now.Queue
		for _, l := range now.Lanes {
			b.Lanes, b.Used = append(b.Lanes, lane{l}), b.Used+l.Running
		}
		for _, p := range now.Pods {
			b.Pods = append(b.Pods, pod{p, p.ClosedAt == nil && p.LeaseUntil.Before(now.At)})
		}
		b.overlay()
		b.Running = now.Running[:min(len(now.Running), mostShown)]
		return b, errors.Join(errs...)
	})
}

// tree is a pipeline with its decoded planned steps.
type tree struct {
	job.Tree
	Planned []job.Step
}

func (d *dashboard) readTree(ctx context.Context, who access.Principal, id int64) (t tree, err error) {
	if err := d.mustSee(ctx, who, id); err != nil {
		return t, err
	}
	t.Tree, err = storeview.ReadTree(ctx, d.o.Store, id, storeview.TreeLimits{Children: mostBranches, Latest: mostSteps, Flat: true})
	t.Planned = job.Following(t.Pipeline.Planned)
	return t, err
}

// shownJob reads a job in the form that the visitor may see, with hidden values masked.
func (d *dashboard) shownJob(r *http.Request, p *page, id int64) (j job.Job, err error) {
	if err := d.mustSee(r.Context(), p.Principal, id); err != nil {
		return j, err
	}
	if j, err = storeview.Job(r.Context(), d.o.Store, id); err != nil {
		return j, err
	}
	return d.o.Shown(r, p.Principal, j)
}

// history is a job with its events, oldest first.
type history struct {
	job.Job
	Events  []job.Event
	Missing int // number of earlier events that were not read
	Fan     *job.TreeFanOut
	PodName string
	// Followed lists the IDs of the jobs that were started because this job failed.
	Followed []string
	Worker   *store.WorkerRow // the remote worker that ran the job last; nil if a pod did, or if the row was deleted
	InChain  bool             // the job's pipeline has more than one job
}

func (d *dashboard) readHistory(ctx context.Context, who access.Principal, id int64) (h history, err error) {
	if err := d.mustSee(ctx, who, id); err != nil {
		return h, err
	}
	if h.Job, err = storeview.Job(ctx, d.o.Store, id); err != nil {
		return h, err
	}
	h.Missing = max(h.EventNo-mostEvents, 0)
	if h.Events, err = storeview.JobEvents(ctx, d.o.Store, id, h.Missing, mostEvents); err != nil {
		return h, err
	}
	if h.Fan, err = storeview.FanOutOf(ctx, d.o.Store, id, 0); err != nil {
		return h, err
	}
	for _, e := range h.Events {
		if e.Event == "job.followed" {
			h.Followed = append(h.Followed, followerIn(e.Fields))
		}
		if h.Pod != nil && e.Boot != nil && *e.Boot == *h.Pod && e.Pod != nil {
			h.PodName = *e.Pod
		}
	}
	if h.Worker, err = d.readWorker(ctx, h.Pod); err != nil {
		return h, err
	}
	h.InChain = h.ParentID != nil || h.Fan != nil || len(job.Following(h.Planned)) > 0 || h.Step > 0
	if !h.InChain {
		p, err := storeview.Pipeline(ctx, d.o.Store, h.PipelineID)
		if err != nil && !errors.Is(err, job.ErrNotFound) {
			return h, err
		}
		h.InChain = err == nil && p.LastJob != h.ID
	}
	return h, nil
}

// readWorker returns the row of a remote worker, or nil for a pod.
func (d *dashboard) readWorker(ctx context.Context, boot *string) (*store.WorkerRow, error) {
	if boot == nil {
		return nil, nil
	}
	g, err := store.Worker(ctx, d.o.Store, *boot)
	if errors.Is(err, job.ErrNotFound) {
		return nil, nil
	}
	return &g, err
}
