package api

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// secrets removes secrets that a caller may not see. It is safe for concurrent use.
type secrets struct {
	masks    *masks
	readings *readings
}

// secretsOf returns JSON pointers to a kind's secret arguments, and the declared members of the arguments of a kind with secrets. known is false if
// the kind's secrets are unknown.
type secretsOf func(kind string) (pointers []string, declared *text.Shape, known bool)

// newSecrets returns an API's secrets. of returns those of a kind. always lists pointers that are secret in every kind. If open is set, requests
// carry no credentials, so readings are not audited. It panics if always contains an invalid JSON pointer.
func newSecrets(of secretsOf, always []string, st *store.Store, open bool) *secrets {
	return &secrets{newMasks(of, always), newReadings(st, open)}
}

// view returns a new view for reader. A view serves one response.
func (s *secrets) view(reader access.Principal) *view { return &view{masks: s.masks, reader: reader} }

// note writes an audit entry if v shows other principals' secrets. target names the requested job, pipeline or list.
func (s *secrets) note(request *http.Request, v *view, target string) error {
	return s.readings.note(request, v, target)
}

// view restricts a response to the values that the caller may see. It hides the secrets in arguments, results and planned steps, unless the
// caller has the jobs:args permission. Every list, stream, export and page that shows a job uses a view. Errors, messages and events are
// shown as the handlers wrote them, including any secrets in them. A view must be used by one goroutine only.
type view struct {
	masks   *masks
	reader  access.Principal
	shownOf []string // targets that show other principals' secrets, such as a job, a pipeline, a schedule or a search
	known   bool     // already audited, so further secrets are not recorded
}

// hideJob returns a job without the secrets that the principal may not see.
func (v *view) hideJob(j job.JobRow) job.JobRow {
	bare := v.reader.CanFor(access.JobsArgs, j.Submitter)
	if bare && (v.known || j.Submitter == v.reader.Name) {
		return j // the caller's job, or already audited
	}
	hidden, mask := j, v.masks.of(j.Kind)
	var args, result, plan bool
	hidden.Args, args = mask.args.Hide(j.Args)
	hidden.Result, result = mask.result.Hide(j.Result)
	hidden.Planned, plan = v.masks.plan(j.Planned)
	if !bare {
		return hidden
	}
	if args || result || plan {
		v.shownOf = append(v.shownOf, "job "+strconv.FormatInt(j.ID, 10))
	}
	return j
}

func (v *view) hideJobs(list []job.JobRow) []job.JobRow {
	shown := make([]job.JobRow, len(list))
	for i, j := range list {
		shown[i] = v.hideJob(j)
	}
	return shown
}

// hidePipeline returns a pipeline without the secrets that its reader may not see. A caller with jobs:args that can read only its own
// pipelines sees them in full.
func (v *view) hidePipeline(p job.Pipeline) job.Pipeline {
	planned, hid := v.masks.plan(p.Planned)
	_, readsOwn := v.reader.Can(access.JobsRead)
	allowed, argsOwn := v.reader.Can(access.JobsArgs)
	switch {
	case !allowed || argsOwn && !readsOwn:
		p.Planned = planned
	case hid && !readsOwn:
		v.shownOf = append(v.shownOf, "pipeline "+strconv.FormatInt(p.ID, 10))
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
	for i, treeJob := range shown {
		shown[i].JobRow = v.hideJob(treeJob.JobRow)
		if treeJob.FanOut != nil {
			fan := *treeJob.FanOut
			fan.Shown = v.hideTreeJobs(fan.Shown)
			shown[i].FanOut = &fan
		}
	}
	return shown
}

// present returns a value without the secrets that the caller may not see. The value may be a job, a list of jobs, a pipeline, a tree, or
// schedules; any other value is returned unchanged. Before present reveals other principals' secrets, it writes an audit entry.
func (s *secrets) present(request *http.Request, reader access.Principal, what any) (any, error) {
	v, target := s.view(reader), ""
	switch shows := what.(type) {
	case job.JobRow:
		what, target = v.hideJob(shows), "job "+strconv.FormatInt(shows.ID, 10)
	case []job.JobRow:
		what, target = v.hideJobs(shows), "jobs"
	case job.Pipeline:
		what, target = v.hidePipeline(shows), "pipeline "+strconv.FormatInt(shows.ID, 10)
	case []job.Pipeline:
		shown := make([]job.Pipeline, len(shows))
		for i, pipeline := range shows {
			shown[i] = v.hidePipeline(pipeline)
		}
		what, target = shown, "pipelines"
	case job.Tree:
		what, target = v.hideTree(shows), "pipeline "+strconv.FormatInt(shows.ID, 10)
	case job.ScheduleUse:
		shows.ScheduleSetting = v.hideSetting(shows.Name, shows.ScheduleSetting)
		what, target = shows, "schedule "+shows.Name
	case []job.ScheduleUse:
		shown := slices.Clone(shows)
		for i, schedule := range shown {
			shown[i].ScheduleSetting = v.hideSetting(schedule.Name, schedule.ScheduleSetting)
		}
		what, target = shown, "schedules"
	case job.ScheduleChanged:
		for _, scheduleSetting := range []**job.ScheduleSetting{&shows.Before, &shows.After} {
			if *scheduleSetting != nil {
				shown := v.hideSetting(shows.Schedule, **scheduleSetting)
				*scheduleSetting = &shown
			}
		}
		what, target = shows, "schedule "+shows.Schedule
		if shows.Before == nil {
			v.shownOf = nil // the caller supplied these secrets
		}
	}
	return what, s.readings.note(request, v, target)
}

// searched writes an audit entry for a search of other principals' args or errors, because the result of the search reveals their content.
func (s *secrets) searched(request *http.Request, reader access.Principal, search storeview.Search) error {
	if !search.Secret() || reader.Owner(access.JobsArgs) != "" {
		return nil
	}
	v := s.view(reader)
	v.shownOf = []string{"search " + search.String()}
	return s.readings.note(request, v, "jobs")
}

// hideSetting returns the setting of the named schedule without the secrets that the reader may not see. A schedule's jobs belong to no
// principal.
func (v *view) hideSetting(name string, setting job.ScheduleSetting) job.ScheduleSetting {
	args, hid := v.masks.of(setting.Kind).args.Hide(setting.Args)
	switch {
	case !v.reader.CanFor(access.JobsArgs, ""):
		setting.Args = args
	case hid && !slices.Contains(v.shownOf, "schedule "+name):
		v.shownOf = append(v.shownOf, "schedule "+name)
	}
	return setting
}

// plan hides the secrets of planned steps, using the mask of each step's kind.
func (m *masks) plan(planned json.RawMessage) (shown json.RawMessage, hid bool) {
	if len(planned) == 0 {
		return planned, false
	}
	var steps []job.Step
	if err := json.Unmarshal(planned, &steps); err != nil {
		return access.MaskAll.Hide(planned)
	}
	for i, step := range steps {
		args, found := m.of(step.Kind).args.Hide(step.Args)
		steps[i].Args, hid = args, hid || found
	}
	raw, err := text.JSON(steps)
	if err != nil {
		return json.RawMessage(access.Masked), true
	}
	return raw, hid
}

// masks caches the masks of each kind. It is safe for concurrent use.
type masks struct {
	secrets secretsOf
	always  []string

	mu sync.Mutex
	by map[string]kindMasks
}

// kindMasks are the masks of a kind's arguments and results.
type kindMasks struct{ args, result access.Mask }

// newMasks returns the masks. It panics if always contains an invalid JSON pointer.
func newMasks(of secretsOf, always []string) *masks {
	if _, err := access.MaskOf(always...); err != nil {
		panic("api: " + err.Error())
	}
	return &masks{secrets: of, always: always, by: map[string]kindMasks{}}
}

func (m *masks) of(kind string) kindMasks {
	pointers, declared, known := m.secrets(kind)
	if !known {
		return kindMasks{access.MaskAll, access.MaskAll}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	mask, ok := m.by[kind]
	if !ok {
		result, err := access.MaskOf(append(pointers, m.always...)...)
		if mask = (kindMasks{result.Strict(declared), result}); err != nil {
			mask = kindMasks{access.MaskAll, access.MaskAll}
		}
		m.by[kind] = mask
	}
	return mask
}

// readings writes an audit entry when a caller with the jobs:args permission sees other principals' secrets. The entry is written before
// the response; if it cannot be written, the request fails. Because pages refresh themselves, each pod writes at most one entry a minute
// for the same reading. It is safe for concurrent use.
type readings struct {
	store *store.Store
	open  bool // every request has all permissions without credentials, so there is nothing to audit

	mu     sync.Mutex
	recent map[string]time.Time // when each reading was last audited
}

// These limits apply to the readings kept in memory, and to the targets named in one audit entry.
const (
	sameReading   = time.Minute
	mostReadings  = 4096
	mostBaredRows = 100
)

func newReadings(st *store.Store, open bool) *readings {
	return &readings{store: st, open: open, recent: map[string]time.Time{}}
}

// reading is the content of the audit entry.
type reading struct {
	Asked string   `json:"asked"`          // the normalized path and query, in which an erasure can find a subject
	Shown []string `json:"shown"`          // the targets in which secrets were shown, such as a job or a search
	More  int      `json:"more,omitempty"` // the number of targets omitted from Shown
}

// note writes an audit entry if v shows other principals' secrets. target names the requested job, pipeline or list.
func (r *readings) note(request *http.Request, v *view, target string) error {
	if len(v.shownOf) == 0 || v.known || r.open {
		return nil
	}
	ctx := request.Context()
	now := time.Now()
	key := strings.Join(append([]string{v.reader.Name, job.OriginOf(ctx).Source, target}, v.shownOf...), "\x00")
	if !r.again(key, now) {
		named := v.shownOf[:min(len(v.shownOf), mostBaredRows)]
		deed := admin.AuditEntry{Actor: v.reader.Name, Action: "job.read_args", Target: target,
			After: reading{Asked: asked(request), Shown: named, More: len(v.shownOf) - len(named)}}
		if err := admin.Audit(ctx, r.store, deed); err != nil {
			return unrecorded("the response contains secrets, and the access", err)
		}
		r.remember(key, now)
	}
	v.known = true
	return nil
}

// asked returns the requested path with its query parameters re-encoded and sorted. The result has at most 500 bytes; parameters that do
// not fit are omitted.
func asked(request *http.Request) string {
	at := access.RequestURL(request)
	text, sep := job.Storable(at.EscapedPath(), 500), "?"
	for parameter := range strings.SplitSeq(at.Query().Encode(), "&") {
		if parameter != "" && len(text)+1+len(parameter) <= 500 {
			text, sep = text+sep+parameter, "&"
		}
	}
	return text
}

// again reports whether the same reading has been audited within the last minute.
func (r *readings) again(key string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.recent[key]
	return ok && now.Sub(at) < sameReading
}

func (r *readings) remember(key string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.recent) >= mostReadings {
		clear(r.recent)
	}
	r.recent[key] = now
}
