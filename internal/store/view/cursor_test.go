package view

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/plantest"
	"github.com/trapeze-run/trapeze/job"
)

// An accepted cursor works in queries, and formatting its parsed value yields an equivalent cursor. Any other cursor is rejected as the
// caller's error.
func FuzzPageCursor(f *testing.F) {
	for _, text := range []string{"", "1700000000000000.42", "-1.-1", "0.0", "1.", ".1", "1.2.3", "9223372036854775807.1", "-9223372036854775808.1",
		"9223371331200000000.1", "-210866803200000001.7", "+1.+1", "0x1.1", "1 .1", "é.1", "\x00.1"} {
		f.Add(text)
	}
	s := plantest.Open(f, store.New)
	f.Fuzz(func(t *testing.T, text string) {
		at, id, err := pageCursor(text)
		if err != nil {
			if !errors.Is(err, job.ErrInvalid) {
				t.Errorf("cursor %q: %v", text, err)
			}
			return
		}
		if at != nil {
			again, sameID, err := pageCursor(pageAfter(*at, id))
			if err != nil || !again.Equal(*at) || sameID != id {
				t.Errorf("cursor %q parses as (%s, %d), but its formatted value as (%v, %d): %v", text, at, id, again, sameID, err)
			}
		}
		if _, err := Jobs(t.Context(), s, job.Filter{Cursor: text}); err != nil {
			t.Errorf("jobs after %q: %v", text, err)
		}
		if _, err := Pipelines(t.Context(), s, PipelineFilter{Cursor: text}); err != nil {
			t.Errorf("pipelines after %q: %v", text, err)
		}
	})
}

func FuzzEventCursor(f *testing.F) {
	for _, text := range []string{"", "0.0.0", "750.12.3", "18446744073709551615.9223372036854775807.2147483647", "18446744073709551616.0.0",
		"0.-1.-1", "1.2", "1.2.3.4", "007.007.007", "+1.+2.+3", "1e3.0.0", "-1.0.0", "1. 2.3", "٣.0.0"} {
		f.Add(text)
	}
	s := plantest.Open(f, store.New)
	f.Fuzz(func(t *testing.T, text string) {
		xid, id, no, err := parseCursor(text)
		number, numberErr := EventNo(text)
		if err != nil {
			if !errors.Is(err, job.ErrInvalid) || !errors.Is(numberErr, job.ErrInvalid) {
				t.Errorf("cursor %q: %v, %v", text, err, numberErr)
			}
			return
		}
		if numberErr != nil || number != no || no < 0 {
			t.Errorf("cursor %q: parseCursor returns event %d, EventNo %d: %v", text, no, number, numberErr)
		}
		again, sameID, sameNo, err := parseCursor(fmt.Sprintf("%s.%d.%d", xid, id, no))
		if err != nil || again != xid || sameID != id || sameNo != no {
			t.Errorf("cursor %q changes to %s.%d.%d: %v", text, again, sameID, sameNo, err)
		}
		if _, err := Events(t.Context(), s, 0, text, 10); err != nil {
			t.Errorf("events after %q: %v", text, err)
		}
		if _, err := Events(t.Context(), s, 1, text, 10); err != nil {
			t.Errorf("events of a pipeline after %q: %v", text, err)
		}
		if _, err := JobEvents(t.Context(), s, 1, no, 10); err != nil {
			t.Errorf("events of a job after %q: %v", text, err)
		}
	})
}

// Cursors that pageAfter generates are accepted, and parsing them yields the same time with PostgreSQL's microsecond precision.
func FuzzGeneratedPageCursor(f *testing.F) {
	f.Add(int64(0), int64(1))
	f.Add(time.Date(2025, 1, 31, 8, 0, 0, 999_999_000, time.UTC).UnixMicro(), int64(1)<<62)
	f.Add(int64(-1), int64(-1))
	f.Add(earliest.UnixMicro(), int64(0))
	f.Add(latest.UnixMicro(), int64(0))
	f.Fuzz(func(t *testing.T, micros, id int64) {
		at := time.UnixMicro(micros)
		if at.Before(earliest) || at.After(latest) {
			return // a cursor cannot represent this time
		}
		text := pageAfter(at, id)
		again, sameID, err := pageCursor(text)
		if err != nil || again == nil || !again.Equal(at) || sameID != id {
			t.Fatalf("cursor %q of (%s, %d) parses as (%v, %d): %v", text, at, id, again, sameID, err)
		}
		if back := pageAfter(*again, sameID); back != text {
			t.Errorf("cursor %q changes to %q", text, back)
		}
	})
}
