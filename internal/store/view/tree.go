package view

import (
	"context"
	"errors"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// TreeLimits limits the size of a tree, because every displayed child and every fan-out requires several queries.
type TreeLimits struct {
	Children int  // maximum number of displayed children per fan-out; 1,000 in the whole tree
	Latest   int  // number of jobs at the end of the spine whose fan-outs are read; 0 means all
	Flat     bool // whether to omit the fan-outs of children
}

// mostShown is the maximum number of children displayed in a tree.
const mostShown = 1000

// ReadTree returns the tree of the pipeline whose first job has the given id. It returns [job.ErrNotFound] if there is no such pipeline.
func ReadTree(ctx context.Context, s *store.Store, id int64, limits TreeLimits) (t job.Tree, err error) {
	if t.Pipeline, err = Pipeline(ctx, s, id); err != nil {
		return t, err
	}
	spine, err := Spine(ctx, s, id)
	if err == nil && len(spine) == 0 { // the pipeline was pruned after the first statement
		err = fmt.Errorf("read pipeline %d: %w", id, job.ErrNotFound)
	}
	if err != nil {
		return t, err
	}
	t.Jobs = asTree(spine)
	read := t.Jobs
	if limits.Latest > 0 {
		read = read[max(len(read)-limits.Latest, 0):]
	}
	left := mostShown
	return t, addFanOuts(ctx, s, read, limits, &left)
}

// FanOutOf returns a job's fan-out with a limited number of its children, or nil if the job has not fanned out.
func FanOutOf(ctx context.Context, s *store.Store, id int64, children int) (*job.TreeFanOut, error) {
	one, left := []job.TreeJob{{Job: job.Job{ID: id}}}, mostShown
	err := addFanOuts(ctx, s, one, TreeLimits{Children: children, Flat: true}, &left)
	return one[0].FanOut, err
}

func asTree(jobs []job.Job) []job.TreeJob {
	list := make([]job.TreeJob, len(jobs))
	for i, j := range jobs {
		list[i].Job = j
	}
	return list
}

// addFanOuts adds each job's fan-out, and recursively the fan-outs of the displayed children. left is the number of children that can still
// be displayed.
func addFanOuts(ctx context.Context, s *store.Store, jobs []job.TreeJob, limits TreeLimits, left *int) error {
	for i := range jobs {
		w, err := s.Waiting(ctx, jobs[i].ID)
		if errors.Is(err, job.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		f := &job.TreeFanOut{Branches: w.Branches, States: map[job.State]int{}}
		jobs[i].FanOut = f
		states, err := BranchStates(ctx, s, w.PipelineID, w.ID)
		if err != nil {
			return err
		}
		for _, branchState := range states {
			f.States[branchState.State] = branchState.Branches
		}
		if len(states) == 0 { // the branches are parts of a deferred job, which are completed externally
			f.States[job.Succeeded], f.States[job.Failed], f.States[job.Waiting] = w.Branches-w.Open-w.Failed, w.Failed, w.Open
		}
		shown, err := BranchJobs(ctx, s, w.PipelineID, w.ID, []job.State{job.Failed, job.Running, job.Waiting, job.Cancelled}, min(limits.Children, *left))
		if err != nil {
			return err
		}
		f.Shown, *left = asTree(shown), *left-len(shown)
		if limits.Flat {
			continue
		}
		if err := addFanOuts(ctx, s, f.Shown, limits, left); err != nil {
			return err
		}
	}
	return nil
}
