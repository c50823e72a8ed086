package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// refusals writes down who tried to change something that he may not. A flood cannot fill the table: after the first of them it is one
// a second, apart for those who said who they are and those who did not, and the next row says how many were left out.
type refusals struct {
	store            *store.Store
	known, anonymous *rate.Limiter
	left             atomic.Int64
}

// refusalBurst is how many refusals are written at once before the rate of one a second holds.
const refusalBurst = 60

func newRefusals(st *store.Store) *refusals {
	return &refusals{store: st, known: rate.NewLimiter(1, refusalBurst), anonymous: rate.NewLimiter(1, refusalBurst)}
}

// note writes down err, if it refuses a change.
func (r *refusals) note(request *http.Request, to Route, err error) {
	p, ok := errors.AsType[*problem](err)
	if !ok || !p.refused || !to.changes() {
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
	deed := store.Deed{Actor: actor, Action: to.Method + " " + to.Path, Target: bounded(request.URL.EscapedPath(), 200), Refused: p.because()}
	if left := r.left.Swap(0); left > 0 {
		deed.After = map[string]int64{"not_written": left}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(request.Context()), 2*time.Second)
	defer cancel()
	if err := r.store.Audit(ctx, deed); err != nil {
		slog.WarnContext(ctx, "a refusal could not be written down", "actor", actor, "action", deed.Action, telemetry.Err, err)
	}
}

// because is why a request was refused.
func (p *problem) because() string {
	if p.detail == "" {
		return p.code
	}
	return p.code + ": " + p.detail
}

// bounded cuts text to a number of bytes and to what PostgreSQL can store.
func bounded(text string, most int) string {
	if len(text) > most {
		text = text[:most]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(text, "�"), "\x00", "�")
}
