package api

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// secrets hides secrets from callers who may not see them, and has it audited when a caller sees those of others.
type secrets struct {
	masks    *masks
	readings *readings
}

func (s *secrets) view(to access.Principal) *view { return &view{masks: s.masks, to: to} }

// view is what one request shows to its caller: with the secrets hidden in arguments, results and planned steps, unless the caller has the
// permission jobs:args. Everything that shows a job uses one: lists, streams, exports, pages. Errors, messages and events are as their
// handlers wrote them: a secret there is shown. It is for one goroutine.
type view struct {
	masks *masks
	to    access.Principal
	bared []string // the jobs and pipelines of others, secrets of which it shows
	known bool     // it is audited that it shows secrets: the rest need not be searched for them
}

func (v *view) hideJob(j job.Job) job.Job {
	bare := v.to.Sees(access.JobsArgs, j.Submitter)
	if bare && (v.known || j.Submitter == v.to.Name) {
		return j // it is the caller's own
	}
	hidden, mask := j, v.masks.of(j.Kind)
	var args, result, plan bool
	hidden.Args, args = mask.Strict().Hide(j.Args)
	hidden.Result, result = mask.Hide(j.Result)
	hidden.Planned, plan = v.masks.plan(j.Planned)
	if !bare {
		return hidden
	}
	if args || result || plan {
		v.bared = append(v.bared, "job "+idText(j.ID))
	}
	return j
}

func (v *view) hideJobs(list []job.Job) []job.Job {
	shown := make([]job.Job, len(list))
	for i, one := range list {
		shown[i] = v.hideJob(one)
	}
	return shown
}

// hidePipeline returns a pipeline as its reader may see it. A caller who sees only own ones sees all of each.
func (v *view) hidePipeline(p job.Pipeline) job.Pipeline {
	planned, hid := v.masks.plan(p.Planned)
	_, reads := v.to.Can(access.JobsRead)
	allowed, own := v.to.Can(access.JobsArgs)
	switch {
	case !allowed || own && !reads:
		p.Planned = planned
	case hid && !reads:
		v.bared = append(v.bared, "pipeline "+idText(p.ID))
	}
	return p
}

func (v *view) hideTree(t job.Tree) job.Tree {
	t.Pipeline = v.hidePipeline(t.Pipeline)
	t.Jobs = v.hideTreeJobs(t.Jobs)
	return t
}

func (v *view) hideTreeJobs(jobs []job.TreeJob) []job.TreeJob {
	shown := slices.Clone(jobs)
	for i, one := range shown {
		shown[i].Job = v.hideJob(one.Job)
		if one.FanOut != nil {
			fan := *one.FanOut
			fan.Shown = v.hideTreeJobs(fan.Shown)
			shown[i].FanOut = &fan
		}
	}
	return shown
}

// present returns what holds jobs as a caller may see it: a job, several, a pipeline, a tree, schedules. Any other value stays as it is.
// When it shows the caller secrets of others, that is audited first.
func (s *secrets) present(request *http.Request, to access.Principal, what any) (any, error) {
	v, target := s.view(to), ""
	switch shows := what.(type) {
	case job.Job:
		what, target = v.hideJob(shows), "job "+idText(shows.ID)
	case []job.Job:
		what, target = v.hideJobs(shows), "jobs"
	case job.Pipeline:
		what, target = v.hidePipeline(shows), "pipeline "+idText(shows.ID)
	case []job.Pipeline:
		shown := make([]job.Pipeline, len(shows))
		for i, one := range shows {
			shown[i] = v.hidePipeline(one)
		}
		what, target = shown, "pipelines"
	case job.Tree:
		what, target = v.hideTree(shows), "pipeline "+idText(shows.ID)
	case job.ScheduleUse:
		shows.ScheduleSetting = v.hideSetting(shows.Name, shows.ScheduleSetting)
		what, target = shows, "schedule "+shows.Name
	case []job.ScheduleUse:
		shown := slices.Clone(shows)
		for i, one := range shown {
			shown[i].ScheduleSetting = v.hideSetting(one.Name, one.ScheduleSetting)
		}
		what, target = shown, "schedules"
	case job.ScheduleChanged:
		for _, one := range []**job.ScheduleSetting{&shows.Before, &shows.After} {
			if *one != nil {
				shown := v.hideSetting(shows.Schedule, **one)
				*one = &shown
			}
		}
		what, target = shows, "schedule "+shows.Schedule
		if shows.Before == nil {
			v.bared = nil // the caller has just sent it
		}
	}
	return what, s.readings.note(request, v, target)
}

// hideSetting returns the setting of the schedule called name as its reader may see it: its jobs are no caller's own.
func (v *view) hideSetting(name string, one job.ScheduleSetting) job.ScheduleSetting {
	args, hid := v.masks.of(one.Kind).Strict().Hide(one.Args)
	switch {
	case !v.to.Sees(access.JobsArgs, ""):
		one.Args = args
	case hid && !slices.Contains(v.bared, "schedule "+name):
		v.bared = append(v.bared, "schedule "+name)
	}
	return one
}

// plan hides the secrets of planned steps, by the kind of each.
func (m *masks) plan(planned json.RawMessage) (shown json.RawMessage, hid bool) {
	if len(planned) == 0 {
		return planned, false
	}
	var steps []job.Step
	if err := json.Unmarshal(planned, &steps); err != nil {
		return access.MaskAll.Hide(planned)
	}
	for i, step := range steps {
		args, found := m.of(step.Kind).Strict().Hide(step.Args)
		steps[i].Args, hid = args, hid || found
	}
	raw, err := encodeJSON(steps)
	if err != nil {
		return json.RawMessage(access.Masked), true
	}
	return raw, hid
}

// masks has the mask of each kind's arguments. It is safe for concurrent use.
type masks struct {
	r      *runner.Runner
	always []string

	mu sync.Mutex
	by map[string]access.Mask
}

// newMasks panics when always holds text that is no JSON pointer: it is wired wrong.
func newMasks(r *runner.Runner, always []string) *masks {
	if _, err := access.MaskOf(always...); err != nil {
		panic("api: " + err.Error())
	}
	return &masks{r: r, always: always, by: map[string]access.Mask{}}
}

func (m *masks) of(kind string) access.Mask {
	pointers, known := inside.Of(m.r).Secrets(kind)
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

// readings audits who sees secrets of others, by the permission jobs:args, before the answer: without the row there is none.
// Pages refresh themselves, so the same reading within a minute is one row of each pod. It is safe for concurrent use.
type readings struct {
	store *store.Store
	open  bool // every request may do everything, without credentials: there is nothing to audit

	mu     sync.Mutex
	lately map[string]time.Time // when a reading was audited
}

// Bounds of the readings that are remembered, and of the jobs that one row names.
const (
	sameReading   = time.Minute
	mostReadings  = 4096
	mostBaredRows = 100
)

func newReadings(st *store.Store, open bool) *readings {
	return &readings{store: st, open: open, lately: map[string]time.Time{}}
}

// reading is the audit's record of one.
type reading struct {
	Asked string   `json:"asked"`          // the path and query
	Shown []string `json:"shown"`          // the jobs and pipelines whose secrets were shown
	More  int      `json:"more,omitempty"` // beside these
}

// note audits the secrets of others that v shows, if there are any. target names the job, pipeline or list that was asked for.
func (r *readings) note(request *http.Request, v *view, target string) error {
	if len(v.bared) == 0 || v.known || r.open {
		return nil
	}
	ctx := request.Context()
	now := time.Now()
	key := strings.Join(append([]string{v.to.Name, job.OriginOf(ctx).Source, target}, v.bared...), "\x00")
	if !r.again(key, now) {
		named := v.bared[:min(len(v.bared), mostBaredRows)]
		deed := admin.Deed{Actor: v.to.Name, Action: "job.read_args", Target: target,
			After: reading{Asked: bounded(request.RequestURI, 500), Shown: named, More: len(v.bared) - len(named)}}
		if err := admin.Audit(ctx, r.store, deed); err != nil {
			return &problem{status: http.StatusServiceUnavailable, code: "unavailable", message: "secrets are hidden: the access could not be recorded in the audit log", err: err}
		}
		r.remember(key, now)
	}
	v.known = true
	return nil
}

// again reports whether a reading was audited lately.
func (r *readings) again(key string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.lately[key]
	return ok && now.Sub(at) < sameReading
}

func (r *readings) remember(key string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.lately) >= mostReadings {
		clear(r.lately)
	}
	r.lately[key] = now
}
