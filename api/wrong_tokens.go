package api

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// wrongTokens audits requests with wrong credentials. It writes the first one at once, and then the number of further ones once per
// interval, so that a flood does not fill the table. It is safe for concurrent use.
type wrongTokens struct {
	store    *store.Store
	interval time.Duration

	mu      sync.Mutex
	running bool // the next entry is scheduled
	count   wrongCount
}

// wrongCount is the content of the audit entry.
type wrongCount struct {
	Requests int64            `json:"requests"`
	From     map[string]int64 `json:"from"` // the number for each address, for up to mostSources addresses
}

const mostSources = 20

func newWrongTokens(st *store.Store) *wrongTokens {
	return &wrongTokens{store: st, interval: time.Minute}
}

// add counts a request.
func (w *wrongTokens) add(from string) {
	w.mu.Lock()
	w.count.Requests++
	if w.count.From == nil {
		w.count.From = map[string]int64{}
	}
	if _, ok := w.count.From[from]; ok || len(w.count.From) < mostSources {
		w.count.From[from]++
	}
	first := !w.running
	w.running = true
	w.mu.Unlock()
	if first {
		w.write()
	}
}

// write audits the requests since the last entry, and schedules the next entry. If there were none, it stops until the next request.
func (w *wrongTokens) write() {
	w.mu.Lock()
	count := w.count
	w.count, w.running = wrongCount{}, count.Requests > 0
	w.mu.Unlock()
	if count.Requests == 0 {
		return
	}
	time.AfterFunc(w.interval, w.write)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	entry := admin.AuditEntry{Actor: "anonymous", Action: "authenticate", Target: "credentials", Refused: "unauthenticated: unknown, expired or forged credentials", After: count}
	if err := admin.Audit(ctx, w.store, entry); err != nil {
		slog.WarnContext(ctx, "wrong credentials not recorded in the audit log", telemetry.Count, count.Requests, telemetry.Err, err)
	}
}
