package ui

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// What pages read is read here: of jobs and pipelines, only what their visitor may see.

// mustSee answers for somebody else's job, as for one that does not exist.
func (d *dashboard) mustSee(ctx context.Context, p access.Principal, id int64) error {
	if p.Owner(access.JobsRead) == "" {
		return nil
	}
	owner, err := d.o.Store.Owner(ctx, id)
	if err == nil && owner != p.Name {
		err = fmt.Errorf("read job %d: %w", id, job.ErrNotFound)
	}
	return err
}

// How much a page shows, and up to where is counted.
const (
	mostCounted  = 10_000 // waiting jobs of each lane, and parked ones
	mostLooked   = 1_000  // due jobs of each lane whose reasons are looked for
	mostGroups   = 100
	mostRunning  = 1_000 // read; so many are counted by their rows
	mostShown    = 100   // running jobs
	mostPods     = 200
	mostBranches = 6 // of a fan-out, those that run or went wrong
	mostEvents   = 500
	perPage      = 50
)

// board is what is going on.
type board struct {
	Gate      store.BoardGate
	Lanes     []lane
	Pods      []pod
	Running   []store.BoardRun
	Used      int // slots, by all running jobs
	Waiting   []store.BoardWait
	Parked    []store.BoardWait
	Approvals []store.BoardApproval
}

// lane is a lane with what runs in it.
type lane struct {
	store.BoardLane
	Running int
}

// pod is a pod with what it runs.
type pod struct {
	store.BoardPod
	Running int
}

// readBoard reads what is going on. The script says with the header X-Anew that its person has just done something: who presses a
// button wants to see what came of it, not how things were a second ago.
func (d *dashboard) readBoard(r *http.Request) (board, error) {
	return d.board.get(r.Context(), r.Header.Get("X-Anew") != "", func(ctx context.Context) (b board, err error) {
		s := d.o.Store
		b.Gate, err = s.BoardGate(ctx)
		errs := []error{err}
		b.Running, err = s.BoardRunning(ctx, "", mostRunning)
		errs = append(errs, err)
		b.Lanes, b.Pods, err = d.readUse(ctx, b.Running)
		errs = append(errs, err)
		b.Waiting, b.Parked, err = s.BoardWaiting(ctx, mostLooked, mostCounted, mostGroups)
		errs = append(errs, err)
		b.Approvals, err = s.BoardApprovals(ctx, perPage)
		errs = append(errs, err)
		for _, l := range b.Lanes {
			b.Used += l.Running
		}
		b.overlay()
		b.Running = b.Running[:min(len(b.Running), mostShown)]
		return b, errors.Join(errs...)
	})
}

// readUse reads the lanes and pods, and counts what runs of each: one pass over what is due is enough unless very much runs.
func (d *dashboard) readUse(ctx context.Context, running []store.BoardRun) (lanes []lane, pods []pod, err error) {
	found, err := d.o.Store.BoardLanes(ctx, mostCounted)
	if err != nil {
		return nil, nil, err
	}
	processes, err := d.o.Store.BoardPods(ctx, mostPods)
	if err != nil {
		return nil, nil, err
	}
	var slots []store.BoardSlots
	if len(running) < mostRunning {
		for _, r := range running {
			slots = append(slots, store.BoardSlots{Lane: r.Lane, Pod: r.Pod, Running: 1})
		}
	} else if slots, err = d.o.Store.BoardSlots(ctx); err != nil {
		return nil, nil, err
	}
	byLane, byPod := map[string]int{}, map[string]int{}
	for _, s := range slots {
		byLane[s.Lane] += s.Running
		byPod[s.Pod] += s.Running
	}
	for _, l := range found {
		lanes = append(lanes, lane{l, byLane[l.Name]})
	}
	for _, p := range processes {
		pods = append(pods, pod{p, byPod[p.Boot]})
	}
	return lanes, pods, nil
}

// tree is a pipeline as its page shows it.
type tree struct {
	store.Tree
	Planned []job.Step
}

func (d *dashboard) readTree(ctx context.Context, who access.Principal, id int64) (t tree, err error) {
	if err := d.mustSee(ctx, who, id); err != nil {
		return t, err
	}
	t.Tree, err = d.o.Store.Tree(ctx, id, store.TreeLimits{Children: mostBranches, Latest: mostSteps, Flat: true})
	t.Planned = plannedOf(t.Pipeline.Planned)
	return t, err
}

// history is a job with its events, oldest first.
type history struct {
	job.Job
	Events  []job.Event
	Missing int // events before those
	Fan     *store.TreeFanOut
	PodName string
	Guest   *store.GuestRow // the remote worker that runs it, or ran it last; nil: a pod did, or its row is gone
	InChain bool            // it is part of a pipeline of more than one job
}

func (d *dashboard) readHistory(ctx context.Context, who access.Principal, id int64) (h history, err error) {
	if err := d.mustSee(ctx, who, id); err != nil {
		return h, err
	}
	if h.Job, err = d.o.Store.Job(ctx, id); err != nil {
		return h, err
	}
	h.Missing = max(h.EventNo-mostEvents, 0)
	if h.Events, err = d.o.Store.JobEvents(ctx, id, h.Missing, mostEvents); err != nil {
		return h, err
	}
	if h.Fan, err = d.o.Store.FanOutOf(ctx, id, 0); err != nil {
		return h, err
	}
	for _, e := range h.Events {
		if h.Pod != nil && e.Boot != nil && *e.Boot == *h.Pod && e.Pod != nil {
			h.PodName = *e.Pod
		}
	}
	if h.Guest, err = d.readGuest(ctx, h.Pod); err != nil {
		return h, err
	}
	h.InChain = h.ParentID != nil || h.Fan != nil || len(plannedOf(h.Planned)) > 0 || h.Step > 0
	if !h.InChain {
		p, err := d.o.Store.Pipeline(ctx, h.PipelineID)
		if err != nil && !errors.Is(err, job.ErrNotFound) {
			return h, err
		}
		h.InChain = err == nil && p.LastJob != h.ID
	}
	return h, nil
}

// readGuest reads what is known of a pod as a remote worker; nil: it is none.
func (d *dashboard) readGuest(ctx context.Context, boot *string) (*store.GuestRow, error) {
	if boot == nil {
		return nil, nil
	}
	g, err := d.o.Store.Guest(ctx, *boot)
	if errors.Is(err, job.ErrNotFound) {
		return nil, nil
	}
	return &g, err
}
