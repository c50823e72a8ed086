package text_test

import (
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/text"
)

func FuzzIDParsing(f *testing.F) {
	for _, given := range []string{"1", "9223372036854775807", "9223372036854775808", "0", "-1", "+7", "007", "1e3", "0x1", " 1", "1_000", "٣", ""} {
		f.Add(given)
	}
	f.Fuzz(func(t *testing.T, given string) {
		id, err := text.ParseID(given)
		if err != nil {
			return
		}
		again, err := text.ParseID(strconv.FormatInt(id, 10))
		if id <= 0 || err != nil || again != id {
			t.Errorf("%q is %d, which is %d: %v", given, id, again, err)
		}
	})
}

// An accepted time survives being formatted as RFC 3339, the format in which commands send it to a server.
func FuzzTimeParsing(f *testing.F) {
	for _, given := range []string{"2025-01-31T08:00:00Z", "2025-01-31T08:00:00.123456789+05:45", "90m", "1h30m0.5s", "2562047h47m16.854775807s",
		"0s", "-1h", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:60Z", "9999-12-31T23:59:59-23:59", "now", "1", ""} {
		f.Add(given)
	}
	now := time.Date(2025, 1, 31, 8, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, given string) {
		at, err := text.ParseSince(given, now)
		if err != nil {
			return
		}
		again, err := text.ParseSince(at.Format(time.RFC3339Nano), now)
		if err != nil || !again.Equal(at) {
			t.Errorf("%q is %s, which is %s: %v", given, at, again, err)
		}
	})
}

func FuzzStatesAreKnownOrRefused(f *testing.F) {
	for _, given := range []string{"pending", "pending,running", "pending,pending", "Pending", "pending,", ",", "", "pending running", "happy", "pending\x00"} {
		f.Add(given, "failed")
	}
	f.Fuzz(func(t *testing.T, one, other string) {
		states, err := text.ParseStates([]string{one, other})
		if err != nil {
			return
		}
		var names []string
		for _, state := range states {
			if !state.Known() {
				t.Errorf("%q and %q hold the state %q", one, other, state)
			}
			names = append(names, string(state))
		}
		again, err := text.ParseStates(names)
		if err != nil || !reflect.DeepEqual(again, states) {
			t.Errorf("%v becomes %v: %v", states, again, err)
		}
	})
}
