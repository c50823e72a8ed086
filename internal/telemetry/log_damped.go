package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// dampEvery is the minimum interval between two log lines about the same problem.
const dampEvery = time.Minute

// Damped logs problems that recur while the database is unavailable. It logs a problem immediately, then at most once a minute with the
// number of suppressed lines, and finally when the problem is over.
type Damped struct {
	log *slog.Logger
	now func() time.Time

	mu       sync.Mutex
	troubles map[string]*trouble // by message
}

type trouble struct {
	since time.Time // when the problem started
	shown time.Time // when the latest line about it was logged
	left  int       // number of lines suppressed since
	open  bool      // a line has been logged since the problem last ended
}

// NewDamped returns a Damped that writes to log.
func NewDamped(log *slog.Logger) *Damped {
	return &Damped{log: log, now: time.Now, troubles: map[string]*trouble{}}
}

// Warn logs a problem, unless the same problem was logged less than a minute ago. This also limits how often a problem that comes and goes
// is logged.
func (d *Damped) Warn(ctx context.Context, message string, attrs ...any) {
	d.mu.Lock()
	now, t := d.now(), d.troubles[message]
	if t == nil {
		t = &trouble{}
		d.troubles[message] = t
	}
	if t.since.IsZero() {
		t.since = now
	}
	if !t.shown.IsZero() && now.Sub(t.shown) < dampEvery {
		t.left++
		d.mu.Unlock()
		return
	}
	left := t.left
	t.shown, t.left, t.open = now, 0, true
	d.mu.Unlock()
	if left > 0 {
		attrs = append(attrs, LeftOut, left)
	}
	d.log.WarnContext(ctx, message, attrs...)
}

// Over logs that a problem is over, if the problem was logged.
func (d *Damped) Over(ctx context.Context, message string) {
	d.mu.Lock()
	t := d.troubles[message]
	if t == nil || t.since.IsZero() {
		d.mu.Unlock()
		return
	}
	lasted, left, shown := d.now().Sub(t.since), t.left, t.open
	t.since, t.open = time.Time{}, false
	if shown {
		t.left = 0
	}
	d.mu.Unlock()
	if !shown {
		return
	}
	attrs := []any{What, message, Lasted, lasted}
	if left > 0 {
		attrs = append(attrs, LeftOut, left)
	}
	d.log.InfoContext(ctx, "recovered", attrs...)
}
