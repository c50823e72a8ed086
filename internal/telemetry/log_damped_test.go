package telemetry

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"
)

func TestRepeatedErrorLogging(t *testing.T) {
	is := is.New(t)
	var out bytes.Buffer
	clock := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	d := NewDamped(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})))
	d.now = func() time.Time { return clock }
	const heartbeatFailed, claimFailed = "heartbeat failed", "claim failed, retrying in a second"
	ctx, failed := context.Background(), errors.New("gone")
	logs := func(want ...string) {
		t.Helper()
		is.Helper()
		is.Equal(strings.TrimSpace(out.String()), strings.Join(want, "\n"))
		out.Reset()
	}
	d.Over(ctx, heartbeatFailed)
	logs()          // no problem was logged
	for range 100 { // 150 s
		d.Warn(ctx, heartbeatFailed, Err, failed)
		clock = clock.Add(1500 * time.Millisecond)
	}
	d.Warn(ctx, claimFailed, Err, failed) // a different problem
	logs(`level=WARN msg="heartbeat failed" err=gone`,
		`level=WARN msg="heartbeat failed" err=gone left_out=39`,
		`level=WARN msg="heartbeat failed" err=gone left_out=39`,
		`level=WARN msg="claim failed, retrying in a second" err=gone`)
	d.Over(ctx, heartbeatFailed)
	logs(`level=INFO msg=recovered what="heartbeat failed" lasted=2m30s left_out=19`)
	d.Over(ctx, heartbeatFailed)
	logs() // the recovery was already logged

	for range 100 { // a problem that comes and goes gets two lines a minute
		d.Warn(ctx, heartbeatFailed, Err, failed)
		clock = clock.Add(time.Second)
		d.Over(ctx, heartbeatFailed)
		clock = clock.Add(time.Second)
	}
	lines := strings.Count(out.String(), "\n")
	is.True(lines >= 6 && lines <= 8)
	is.True(strings.HasSuffix(strings.TrimSpace(out.String()), "what=\"heartbeat failed\" lasted=1s")) // the last line tells the current state
}
