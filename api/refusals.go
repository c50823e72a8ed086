package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// refusals audits rejected changes. After a burst, it writes at most one row per second, so that a flood does not fill the table.
// Authenticated and unauthenticated callers have separate limits. Each row includes the number of rejections skipped before it.
type refusals struct {
	store            *store.Store
	known, anonymous *rate.Limiter
	left             atomic.Int64
}

// refusalBurst is the number of rejections audited before the limit of one per second applies.
const refusalBurst = 60

func newRefusals(st *store.Store) *refusals {
	return &refusals{store: st, known: rate.NewLimiter(1, refusalBurst), anonymous: rate.NewLimiter(1, refusalBurst)}
}

// note writes an audit entry if err is the rejection of a change.
func (r *refusals) note(request *http.Request, route Route, err error) {
	p, ok := errors.AsType[*problem](err)
	if !ok || !p.Refused || !route.changes() {
		return
	}
	actor, limit := access.Of(request.Context()).Name, r.known
	if actor == "" {
		actor, limit = "anonymous", r.anonymous
	}
	if !limit.Allow() {
		r.left.Add(1)
		return
	}
	entry := admin.AuditEntry{Actor: actor, Action: route.Method + " " + route.Path, Target: job.Storable(request.URL.EscapedPath(), 200), Refused: p.Because()}
	if left := r.left.Swap(0); left > 0 {
		entry.After = map[string]int64{"not_written": left}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(request.Context()), 2*time.Second)
	defer cancel()
	if err := admin.Audit(ctx, r.store, entry); err != nil {
		slog.WarnContext(ctx, "refusal not recorded in the audit log", "actor", actor, "action", entry.Action, telemetry.Err, err)
	}
}
