package checker

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// view is an indexed copy of a run's records.
type view struct {
	run       *history.Run
	stories   map[int64]*story
	pipelines map[int64][]*story // by the ID of the pipeline's first job
	ordered   []*story           // sorted by ID
	podIDs    map[string]*podID
	lives     []*life // sorted by start time
	trouble   trouble
	calls     map[int64][]*history.Call // by the job that the call names
	lanes     lanes
	waits     []*wait
	keyed     map[string][]*story // the jobs of each key
	keyLimits keyLimits
	rates     map[string][]rate   // by lane
	rated     map[string][]*claim // the claims in lanes with a rate, in order
	looked    []freeSlots
	claimed   map[*life][]*wait // by claiming process, in order; nil until needed
	slack     time.Duration     // how much longer reactions may take on a loaded machine
}

// story contains all records of one job.
type story struct {
	id       int64
	job      *job.JobRow // nil if it was not exported
	exported int         // number of times that the job was exported
	events   []*job.Event
	claims   []*claim
	lines    []*history.Line
	next     []*story // the job's next steps
	branches []*story // the first job of each branch of the job's fan-out
	onFail   []*story // the job's on-failure jobs
	tampered bool     // a fault wrote directly to the job's rows
	key      string   // empty if there is none
	keeps    bool     // the job was submitted as ordered
}

// claim is one claim of a job. It lasts from the event that records the claim to the event that ends it.
type claim struct {
	of      *story
	fence   int64
	podID   string
	event   *job.Event
	end     *job.Event // nil if the claim has not ended
	born    bool       // started on insert
	starts  []*history.Line
	ctxDone *history.Line // the handler's context was cancelled
	done    *history.Line // the handler returned
}

func look(run *history.Run) *view {
	v := &view{run: run, stories: map[int64]*story{}, pipelines: map[int64][]*story{}, podIDs: map[string]*podID{}, calls: map[int64][]*history.Call{}, slack: 2 * time.Second}
	if run.Settings.Race {
		v.slack *= 2
	}
	for i := range run.Jobs {
		s := v.story(run.Jobs[i].ID)
		s.exported++
		s.job = &run.Jobs[i]
	}
	for i := range run.Events {
		e := &run.Events[i]
		if e.Job == nil {
			v.podEvent(e)
			continue
		}
		s := v.story(*e.Job)
		s.events = append(s.events, e)
	}
	for i := range run.Ledger {
		s := v.story(run.Ledger[i].Job)
		s.lines = append(s.lines, &run.Ledger[i])
	}
	for i := range run.Calls {
		if c := &run.Calls[i]; c.Job != 0 {
			v.calls[c.Job] = append(v.calls[c.Job], c)
			v.story(c.Job).keeps = v.story(c.Job).keeps || c.Ordered
		}
	}
	for _, f := range run.Faults {
		for _, id := range tamperedWith(f) {
			v.story(id).tampered = true
		}
	}
	v.assignBoots()
	v.trouble = troubleOf(v)
	for _, s := range v.stories {
		v.ordered = append(v.ordered, s)
	}
	slices.SortFunc(v.ordered, func(a, b *story) int { return cmp.Compare(a.id, b.id) })
	for _, s := range v.ordered {
		s.replay(v)
		if s.job == nil {
			continue
		}
		v.pipelines[s.job.PipelineID] = append(v.pipelines[s.job.PipelineID], s)
		if s.job.ParentID == nil {
			continue
		}
		switch parent := v.story(*s.job.ParentID); {
		case s.begins():
			parent.onFail = append(parent.onFail, s)
		case s.job.GroupID != nil && *s.job.GroupID == parent.id:
			parent.branches = append(parent.branches, s)
		default:
			parent.next = append(parent.next, s)
		}
	}
	v.indexKeys()
	v.lanes = lanesOf(run)
	v.waits = v.waitsOf()
	v.indexRates()
	return v
}

func (v *view) story(id int64) *story {
	s := v.stories[id]
	if s == nil {
		s = &story{id: id}
		v.stories[id] = s
	}
	return s
}

// begins reports whether the job is the first one of a pipeline.
func (s *story) begins() bool { return s.job.Step == 0 && s.job.PipelineID == s.id }

// replay sorts a job's events, derives the job's claims from them, and attaches the ledger lines to the claims.
func (s *story) replay(v *view) {
	slices.SortStableFunc(s.events, func(a, b *job.Event) int { return cmp.Compare(number(a), number(b)) })
	slices.SortFunc(s.lines, func(a, b *history.Line) int { return cmp.Compare(a.N, b.N) })
	var open *claim
	for _, e := range s.events {
		switch {
		case claims(e):
			open = &claim{of: s, fence: fenceOf(e), podID: bootOf(e), event: e, born: strings.Contains(string(e.Fields), `"fast"`)}
			s.claims = append(s.claims, open)
			b := v.podID(open.podID)
			b.claims = append(b.claims, open)
			if s.job != nil {
				b.kinds[s.job.Kind] = true
			}
		case leaves(e) && open != nil:
			open.end, open = e, nil
		}
		if recovers(e) {
			if b := v.podID(bootOf(e)); b.recovered.IsZero() || e.At.Before(b.recovered) {
				b.recovered = e.At
			}
		}
	}
	for _, l := range s.lines {
		c := s.claim(l.Fence, l.PodID)
		if c == nil {
			continue
		}
		switch l.Event {
		case "start":
			c.starts = append(c.starts, l)
		case "ctx_done":
			c.ctxDone = l
		case "end":
			c.done = l
		}
	}
}

// claim returns the claim with the given fence and pod ID, or nil.
func (s *story) claim(fence int64, podID string) *claim {
	for _, c := range s.claims {
		if c.fence == fence && c.podID == podID {
			return c
		}
	}
	return nil
}

// start returns the first start line of the claim's handler, or nil if the ledger has none.
func (c *claim) start() *history.Line {
	if len(c.starts) == 0 {
		return nil
	}
	return c.starts[0]
}

// returnedAt returns when the claim's handler reported that it had returned, or the zero time if it never did.
func (c *claim) returnedAt() time.Time {
	if c.done == nil {
		return time.Time{}
	}
	return c.done.T
}

func number(e *job.Event) int {
	if e.EventNo == nil {
		return 0
	}
	return *e.EventNo
}

func fenceOf(e *job.Event) int64 {
	if e.Fence == nil {
		return 0
	}
	return *e.Fence
}

func bootOf(e *job.Event) string {
	if e.PodID == nil {
		return ""
	}
	return *e.PodID
}

// claims reports whether an event is a claim. leaves reports whether an event ends a claim. recovers reports whether an event ends a claim
// because the lease of its pod expired.
func claims(e *job.Event) bool { return e.To == job.Running && e.From != job.Running }
func leaves(e *job.Event) bool { return e.From == job.Running && e.To != job.Running }
func recovers(e *job.Event) bool {
	return e.Event == "job.recovered" || leaves(e) && fieldsOf(e).PodID != ""
}

// fields contains the event fields that the checker reads. Trapeze itself writes these fields. Only recovery events name a pod ID.
type fields struct {
	Reason  string `json:"reason"`
	PodID   string `json:"pod_id"`
	Crashes int    `json:"crashes"`
	DelayMS int64  `json:"delay_ms"`
	Before  int    `json:"before"` // the priority before the change
	Job     string `json:"job"`    // the on-failure job
}

func fieldsOf(e *job.Event) (f fields) {
	if len(e.Fields) > 2 {
		_ = json.Unmarshal(e.Fields, &f) // handlers may write arbitrary fields
	}
	return f
}

// xid returns the ID of the transaction that wrote an event. It is part of the event's cursor.
func xid(e *job.Event) string {
	id, _, _ := strings.Cut(e.Cursor, ".")
	return id
}

// tamperedWith returns the IDs of the jobs whose rows a fault modified. The fault's note contains one ID under "job" or a list of IDs under
// "jobs".
func tamperedWith(f history.Fault) (ids []int64) {
	for _, key := range []string{"job", "jobs"} {
		list, ok := f.Note[key].([]any)
		if !ok {
			list = []any{f.Note[key]}
		}
		for _, one := range list {
			switch id := one.(type) {
			case string:
				if n, err := strconv.ParseInt(id, 10, 64); err == nil {
					ids = append(ids, n)
				}
			case float64:
				ids = append(ids, int64(id))
			case int64:
				ids = append(ids, id)
			}
		}
	}
	return ids
}
