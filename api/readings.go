package api

import (
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

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

// reading is what a row of the audit has of one.
type reading struct {
	Asked string   `json:"asked"`          // the path and query
	Shown []string `json:"shown"`          // the jobs and pipelines whose secrets were shown
	More  int      `json:"more,omitempty"` // beside these
}

// note audits the secrets of others that v shows, if there are any. target is what was asked for.
func (r *readings) note(request *http.Request, v *view, target string) error {
	if len(v.bared) == 0 || v.known || r.open {
		return nil
	}
	ctx := request.Context()
	now := time.Now()
	key := strings.Join(append([]string{v.to.Name, job.OriginOf(ctx).Source, target}, v.bared...), "\x00")
	if !r.again(key, now) {
		named := v.bared[:min(len(v.bared), mostBaredRows)]
		deed := store.Deed{Actor: v.to.Name, Action: "job.read_args", Target: target,
			After: reading{Asked: bounded(request.RequestURI, 500), Shown: named, More: len(v.bared) - len(named)}}
		if err := r.store.Audit(ctx, deed); err != nil {
			return &problem{status: http.StatusServiceUnavailable, code: "unavailable", message: "secrets are not shown while it cannot be written down who sees them", err: err}
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
