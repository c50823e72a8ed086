package api

import (
	"context"
	"errors"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Tree is a pipeline with the jobs of its spine and what became of their branches.
type Tree struct {
	job.Pipeline
	Jobs []TreeJob `json:"jobs"`
}

// TreeJob is a job of a tree.
type TreeJob struct {
	job.Job
	FanOut *TreeFanOut `json:"fan_out,omitempty"` // nil: it has not fanned out
}

// TreeFanOut is what a job of a tree fanned out to.
type TreeFanOut struct {
	Branches int               `json:"branches"`
	States   map[job.State]int `json:"states"` // so many branches are in each
	Shown    []TreeJob         `json:"shown"`  // the branches that run or did not succeed, by their last jobs
}

// mostShown is how many branches one tree shows in all: each costs some reads, and branches may have fanned out again.
const mostShown = 1000

// ReadTree reads a pipeline by the id of its first job, with at most so many branches of each fan-out, and 1,000 in all:
// [job.ErrNotFound] when there is none.
func ReadTree(ctx context.Context, r *runner.Runner, id int64, branches int) (t Tree, err error) {
	return readTree(ctx, r, r.Store(), id, branches)
}

func readTree(ctx context.Context, r *runner.Runner, from *store.Store, id int64, branches int) (t Tree, err error) {
	if t.Pipeline, err = r.GetPipeline(ctx, id); err != nil {
		return t, err
	}
	spine, err := from.Spine(ctx, id)
	if err != nil {
		return t, err
	}
	left := mostShown
	for _, j := range spine {
		one, err := readFanOut(ctx, from, j, branches, &left)
		if err != nil {
			return t, err
		}
		t.Jobs = append(t.Jobs, one)
	}
	return t, nil
}

// readFanOut adds to a job what it fanned out to, and so on with the branches that are shown.
func readFanOut(ctx context.Context, from *store.Store, j job.Job, branches int, left *int) (TreeJob, error) {
	one := TreeJob{Job: j}
	w, err := from.Waiting(ctx, j.ID)
	if errors.Is(err, job.ErrNotFound) {
		return one, nil
	}
	if err != nil {
		return one, err
	}
	f := &TreeFanOut{Branches: w.Branches, States: map[job.State]int{}, Shown: []TreeJob{}}
	one.FanOut = f
	states, err := from.BranchStates(ctx, w.PipelineID, j.ID)
	if err != nil {
		return one, err
	}
	for _, s := range states {
		f.States[s.State] = s.Branches
	}
	if len(states) == 0 { // parts that are completed from outside
		f.States[job.Succeeded], f.States[job.Failed], f.States[job.Waiting] = w.Branches-w.Open-w.Failed, w.Failed, w.Open
	}
	shown, err := from.BranchJobs(ctx, w.PipelineID, j.ID, []job.State{job.Failed, job.Running, job.Waiting, job.Cancelled}, min(branches, *left))
	if err != nil {
		return one, err
	}
	*left -= len(shown)
	for _, b := range shown {
		below, err := readFanOut(ctx, from, b, branches, left)
		if err != nil {
			return one, err
		}
		f.Shown = append(f.Shown, below)
	}
	return one, nil
}
