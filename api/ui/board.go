package ui

import (
	"fmt"
	"slices"
	"strings"

	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// These are the limits on the jobs that the overview counts.
const (
	mostCounted = 10_000 // waiting jobs in each lane, and parked jobs
	mostLooked  = 1_000  // due jobs in each lane whose reason for waiting the page determines
)

// board holds the data for the overview.
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

// pod is a pod with additional data and methods that templates use.
type pod struct {
	job.Pod
	Lapsed bool // the lease has expired, but the pod is not closed yet
}

// overlay adds reasons for waiting that the rows of due jobs do not show: the queue is paused, the lane is drained, or all slots are in
// use.
func (b *board) overlay() {
	lanes := map[string]lane{}
	for _, l := range b.Lanes {
		lanes[l.Name] = l
	}
	alive, slots := b.Alive(), b.Slots()
	for i := range b.Waiting {
		w := &b.Waiting[i]
		l := lanes[w.Lane]
		limit := b.Limit(l)
		switch {
		case b.Queue.Paused || b.Queue.Frozen:
			w.Why = "queue_state"
		case !l.Enabled:
			w.Why = "disabled"
		case l.NextEngine != nil:
			w.Why = "moving"
		case l.Drained:
			w.Why = "drained"
		case l.Engine != job.EnginePostgreSQL:
			w.Why = "due"
		case w.Why == "no_handler" && alive == 0:
			w.Why = "no_pods"
		case w.Why == "due" && limit != nil && l.Running >= *limit:
			w.Why = "full_lane"
		case w.Why == "due" && b.Used >= slots:
			w.Why = "full_pods"
		}
	}
	slices.SortStableFunc(b.Waiting, func(x, y storeview.BoardWait) int { return strings.Compare(x.Lane, y.Lane) })
}

// Open reports whether the pod claims jobs.
func (p pod) Open() bool { return p.ClosedAt == nil && !p.Lapsed && !p.Draining && !p.Drained }

// Streams describes a remote worker by its owner and stream number.
func (p pod) Streams() string {
	if p.Owner == nil || p.Stream == nil {
		return ""
	}
	return fmt.Sprintf("of %s, stream %d", *p.Owner, *p.Stream)
}

// Remote reports whether a pod is a remote worker.
func (b board) Remote(podID string) bool {
	return slices.ContainsFunc(b.Pods, func(p pod) bool { return p.PodID == podID && p.Remote })
}

// State returns the pod's state as one word.
func (p pod) State() string {
	switch {
	case p.Closed != nil:
		return *p.Closed
	case p.Lapsed:
		return "lapsed"
	case p.Draining:
		return "stopping"
	case p.Drained:
		return "drained"
	}
	return "alive"
}

// State returns the lane's state as one word.
func (l lane) State() string {
	switch {
	case !l.Enabled:
		return "disabled"
	case l.IsTemplate():
		return "template"
	case l.NextEngine != nil:
		return "moving to " + *l.NextEngine
	case l.Drained:
		return "drained"
	}
	return "open"
}

// IsTemplate reports whether lanes are made from the lane.
func (l lane) IsTemplate() bool { return job.IsLaneTemplate(l.Name) }

// Shown returns the lanes that the page lists: all but empty ones that were made from a template. There may be thousands of those.
func (b board) Shown() []lane {
	return slices.DeleteFunc(slices.Clone(b.Lanes), func(l lane) bool {
		return l.Template != nil && !l.Drained && l.Running == 0 && l.Waiting == 0
	})
}

// Own returns the lanes and templates that have their own settings.
func (b board) Own() []lane {
	return slices.DeleteFunc(slices.Clone(b.Lanes), func(l lane) bool { return l.Template != nil })
}

// Made returns the number of lanes that follow a template.
func (b board) Made(template string) (n int) {
	for _, l := range b.Lanes {
		if l.Template != nil && *l.Template == template {
			n++
		}
	}
	return n
}

// OfEngine returns the lane's engine, or an empty string for PostgreSQL.
func (l lane) OfEngine() string {
	if l.Engine == job.EnginePostgreSQL {
		return ""
	}
	return l.Engine
}

// Limit returns how many of the lane's jobs may run concurrently on the open pods, or nil if the lane has no limit.
func (b board) Limit(l lane) *int {
	var limit *int
	if l.SlotsPerPod != nil {
		limit = new(0)
		for _, p := range b.Pods {
			if p.Open() {
				*limit += *l.SlotsPerPod
			}
		}
	}
	if l.Slots != nil && (limit == nil || *l.Slots < *limit) {
		limit = l.Slots
	}
	return limit
}

// Alive returns the number of live pods, including those that are drained or stopping and claim no jobs.
func (b board) Alive() (n int) {
	for _, p := range b.Pods {
		if p.ClosedAt == nil && !p.Lapsed {
			n++
		}
	}
	return n
}

// Slots returns the total number of slots of all open pods.
func (b board) Slots() (n int) {
	for _, p := range b.Pods {
		if p.Open() {
			n += p.Slots
		}
	}
	return n
}

// bar is a bar in an SVG that is 100 units wide.
type bar struct {
	Part, Whole int
	Full        bool
}

// Width returns the width of the filled part, which is at least 2 if Part is not zero.
func (b bar) Width() int64 {
	if b.Part > 0 {
		return max(percent(int64(b.Part), int64(b.Whole)), 2)
	}
	return 0
}

// Bar returns a bar that shows a lane's used slots. If the lane has no limit, the full width represents the slots of all pods.
func (b board) Bar(l lane) bar {
	whole := b.Slots()
	if limit := b.Limit(l); limit != nil {
		whole = *limit
	}
	return bar{l.Running, whole, l.Running > 0 && l.Running >= whole}
}

// PodBar returns a bar that shows a pod's used slots.
func (b board) PodBar(p pod) bar {
	return bar{p.Running, p.Slots, p.Running > 0 && p.Running >= p.Slots}
}

// Due returns the number of jobs that are due but not claimed.
func (b board) Due() (n int) {
	for _, l := range b.Lanes {
		n += l.Waiting
	}
	return n
}

// Parts returns the number of jobs parked for one of the given reasons.
func (b board) Parts(reasons ...string) (n int) {
	for _, w := range b.Parked {
		if slices.Contains(reasons, w.Why) {
			n += w.Jobs
		}
	}
	return n
}

// Most returns the number up to which jobs are counted. MostLooked returns the number of due jobs in each lane whose reason for waiting the
// page determines.
func (b board) Most() int       { return mostCounted }
func (b board) MostLooked() int { return mostLooked }
