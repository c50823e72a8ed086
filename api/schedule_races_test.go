package api_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/job"
)

func TestScheduleChangedSinceRead(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{})
	expression, kind, one := "@yearly", "echo", json.RawMessage(`{ "n": 1 }`)
	_, err := h.Admin("ana").SetSchedule(t.Context(), "yearly", job.ScheduleChange{Expression: &expression, Kind: &kind, Args: &one})
	is.NoErr(err)
	seen, err := h.Admin("").ScheduleByName(t.Context(), "yearly")
	is.NoErr(err)
	priority := 7
	_, err = h.Admin("ben").SetSchedule(t.Context(), "yearly", job.ScheduleChange{Priority: &priority, From: &seen.ScheduleSetting})
	is.NoErr(err) // the schedule has not changed since it was read
	_, err = h.Admin("ben").SetSchedule(t.Context(), "yearly", job.ScheduleChange{Priority: &priority, From: &seen.ScheduleSetting})
	is.True(err != nil && strings.Contains(err.Error(), job.ErrConflict.Error())) // the previous change has modified it
	_, err = h.Admin("ben").TriggerSchedule(t.Context(), "yearly", &seen.ScheduleSetting)
	is.True(err != nil && strings.Contains(err.Error(), job.ErrConflict.Error()))
	fires, err := h.Admin("").ScheduleOccurrences(t.Context(), "yearly", time.Time{}, 10)
	is.NoErr(err)
	is.Equal(len(fires), 0)
}
