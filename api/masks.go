package api

import (
	"encoding/json"
	"slices"
	"sync"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// shown is a job as somebody may see it: with its secrets hidden in arguments, result and planned steps, unless he has the permission
// jobs:args for it. Whatever shows a job calls it: lists, streams, exports, pages. Errors, messages and events are as their handlers
// wrote them: who writes a secret there shows it.
func (s *server) shown(to access.Principal, j job.Job) job.Job {
	if to.Sees(access.JobsArgs, j.Submitter) {
		return j
	}
	mask := s.masks.of(j.Kind)
	j.Args, j.Result, j.Planned = mask.JSON(j.Args), mask.JSON(j.Result), s.shownPlan(j.Planned)
	return j
}

// shownPipeline is a pipeline as somebody may see it. Who sees only his own ones sees all of them.
func (s *server) shownPipeline(to access.Principal, p job.Pipeline) job.Pipeline {
	_, reads := to.Can(access.JobsRead)
	if allowed, own := to.Can(access.JobsArgs); allowed && (!own || reads) {
		return p
	}
	p.Planned = s.shownPlan(p.Planned)
	return p
}

// shownTree is a pipeline with its jobs as somebody may see them.
func (s *server) shownTree(to access.Principal, t Tree) Tree {
	t.Pipeline = s.shownPipeline(to, t.Pipeline)
	t.Jobs = s.shownTreeJobs(to, t.Jobs)
	return t
}

func (s *server) shownTreeJobs(to access.Principal, jobs []TreeJob) []TreeJob {
	shown := slices.Clone(jobs)
	for i, one := range shown {
		shown[i].Job = s.shown(to, one.Job)
		if one.FanOut != nil {
			fan := *one.FanOut
			fan.Shown = s.shownTreeJobs(to, fan.Shown)
			shown[i].FanOut = &fan
		}
	}
	return shown
}

// present is whatever holds jobs as the sender of a request may see it: a job, several, a pipeline, a tree, schedules. Anything else is as it was.
func (s *server) present(c echo.Context, v any) any {
	to := caller(c)
	switch v := v.(type) {
	case job.Job:
		return s.shown(to, v)
	case []job.Job:
		shown := make([]job.Job, len(v))
		for i, one := range v {
			shown[i] = s.shown(to, one)
		}
		return shown
	case job.Pipeline:
		return s.shownPipeline(to, v)
	case []job.Pipeline:
		shown := make([]job.Pipeline, len(v))
		for i, one := range v {
			shown[i] = s.shownPipeline(to, one)
		}
		return shown
	case Tree:
		return s.shownTree(to, v)
	case job.ScheduleUse:
		v.ScheduleSetting = s.shownSetting(to, v.ScheduleSetting)
		return v
	case []job.ScheduleUse:
		shown := slices.Clone(v)
		for i := range shown {
			shown[i].ScheduleSetting = s.shownSetting(to, shown[i].ScheduleSetting)
		}
		return shown
	case job.ScheduleChanged:
		for _, one := range []**job.ScheduleSetting{&v.Before, &v.After} {
			if *one != nil {
				shown := s.shownSetting(to, **one)
				*one = &shown
			}
		}
		return v
	}
	return v
}

// shownSetting is what people say of a schedule as somebody may see it: its job is nobody's own.
func (s *server) shownSetting(to access.Principal, one job.ScheduleSetting) job.ScheduleSetting {
	if !to.Sees(access.JobsArgs, "") {
		one.Args = s.masks.of(one.Kind).JSON(one.Args)
	}
	return one
}

// shownPlan hides the secrets of steps that are still to come, each as its kind says.
func (s *server) shownPlan(planned json.RawMessage) json.RawMessage {
	if len(planned) == 0 {
		return planned
	}
	var steps []job.Step
	if err := json.Unmarshal(planned, &steps); err != nil {
		return access.MaskAll.JSON(planned)
	}
	for i, step := range steps {
		steps[i].Args = s.masks.of(step.Kind).JSON(step.Args)
	}
	raw, err := encodeJSON(steps)
	if err != nil {
		return json.RawMessage(access.Masked)
	}
	return raw
}

// masks knows what is secret in the arguments of each kind. It is safe for concurrent use.
type masks struct {
	r      *runner.Runner
	always []string

	mu sync.Mutex
	by map[string]access.Mask
}

// newMasks panics when always holds what is no JSON pointer: it is wired wrong.
func newMasks(r *runner.Runner, always []string) *masks {
	if _, err := access.MaskOf(always...); err != nil {
		panic("api: " + err.Error())
	}
	return &masks{r: r, always: always, by: map[string]access.Mask{}}
}

func (m *masks) of(kind string) access.Mask {
	pointers, known := m.r.Secrets(kind)
	if !known {
		return access.MaskAll
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	mask, ok := m.by[kind]
	if !ok {
		var err error
		if mask, err = access.MaskOf(append(pointers, m.always...)...); err != nil {
			mask = access.MaskAll
		}
		m.by[kind] = mask
	}
	return mask
}
