package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// dampEvery is the least time between two log lines about the same trouble.
const dampEvery = time.Minute

// Damped logs troubles that repeat while the database is away: the first line of each at once, then one a minute with the number of
// lines left out, and one when it is over.
type Damped struct {
	log *slog.Logger
	now func() time.Time

	mu       sync.Mutex
	troubles map[string]*trouble // by message
}

type trouble struct {
	since time.Time // when it began
	shown time.Time // the latest line about it
	left  int       // lines left out since
	open  bool      // a line was shown since it was over last
}

// NewDamped returns a Damped that writes to log.
func NewDamped(log *slog.Logger) *Damped {
	return &Damped{log: log, now: time.Now, troubles: map[string]*trouble{}}
}

// Warn logs a trouble, unless a line about it was logged less than a minute ago. Trouble that comes and goes is damped too.
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

// Over logs that a trouble is over, if a line was logged about it.
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
