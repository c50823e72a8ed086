package api_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

func TestDashboardSchedulesByRole(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPod(t, api.Options{Authenticate: byName(map[string][]string{"olga": {access.Operator}, "vera": {"viewer"}})})
	response, page := p.get(p.url+"schedules", "X-Who", "olga")
	is.Equal(response.StatusCode, http.StatusOK)
	is.True(strings.Contains(visibleText(page), `trapeze cron set nightly`)) // the empty page explains how to add a schedule

	expression, kind, args := "30 2 * * *", "fail", json.RawMessage(`{"a":"`+strings.ReplaceAll(hostile[0], `"`, ``)+`"}`)
	_, err := p.Admin("ana").SetSchedule(t.Context(), "nightly", job.ScheduleChange{Expression: &expression, Kind: &kind, Subject: &hostile[2], Args: &args})
	is.NoErr(err)
	fire, err := p.Admin("ana").TriggerSchedule(t.Context(), "nightly", nil)
	is.NoErr(err)
	p.until(*fire.JobID, job.Failed)
	p.exec(`update trapeze.schedules set kind = $1`, hostile[1]) // earlier versions accepted such kinds
	for _, path := range []string{"schedules", "schedules/nightly"} {
		pgtest.Wait(t, path+" shows the outcome of the occurrence", func() bool {
			response, page = p.get(p.url+path, "X-Who", "olga")
			is.Equal(response.StatusCode, http.StatusOK)
			return slices.ContainsFunc(offered(page), func(one string) bool { return strings.HasSuffix(one, "schedules/nightly/pause") }) &&
				strings.Contains(visibleText(page), "failed")
		})
		is.True(strings.Contains(strings.ToLower(visibleText(page)), "at 02:30 every day"))
		response, page = p.get(p.url+path, "X-Who", "vera")
		is.Equal(response.StatusCode, http.StatusOK)
		is.Equal(len(offered(page)), 0) // a viewer gets no buttons
	}
	response, page = p.get(p.url+"schedules/none", "X-Who", "olga")
	is.Equal(response.StatusCode, http.StatusNotFound)
	is.True(strings.Contains(visibleText(page), "Schedule not found"))
}
