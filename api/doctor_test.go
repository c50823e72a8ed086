package api_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/doctor"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// findingsOf decodes the findings in a doctor response.
func findingsOf(t *testing.T, a answer) []doctor.Finding {
	t.Helper()
	var body struct{ Findings []doctor.Finding }
	if err := json.Unmarshal([]byte(a.text), &body); err != nil || a.status != http.StatusOK {
		t.Fatalf("status %d, %v: %s", a.status, err, a.text)
	}
	return body.Findings
}

// has reports whether findings include one for the given check and status whose text contains says.
func hasFinding(findings []doctor.Finding, check string, status doctor.Health, says string) bool {
	return slices.ContainsFunc(findings, func(f doctor.Finding) bool {
		return f.Check == check && f.Status == status && strings.Contains(f.Says, says)
	})
}

func TestDoctorExaminesWithItsThresholds(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{Authenticate: authenticateAs("ann", "viewer")})
	findings := findingsOf(t, h.send("GET", "/doctor", ""))
	is.True(hasFinding(findings, "pods", doctor.Healthy, "1 pod starts jobs"))
	is.True(hasFinding(findings, "horizon", doctor.Healthy, "no transaction is older than 5m0s")) // the default threshold
	is.True(hasFinding(findingsOf(t, h.send("GET", "/doctor?transactions=90m&overdue=0s", "")), "horizon", doctor.Healthy, "older than 1h30m0s"))
	for query, message := range map[string]string{
		"transactions=long": `transactions "long": want a duration of 0 or more, such as 5m`,
		"overdue=-1s":       `overdue "-1s": want a duration of 0 or more, such as 5m`,
		"overdue=5":         `overdue "5": want a duration of 0 or more, such as 5m`,
	} {
		refused := h.send("GET", "/doctor?"+query, "")
		is.Equal(refused.status, http.StatusBadRequest)
		is.Equal(refused.body["message"], message)
	}
	is.Equal(h.send("GET", "/doctor?over_due=5m", "").status, http.StatusBadRequest) // an unknown parameter
}

func TestDoctorUsesPodSettings(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	examine := func(o runner.Options) []doctor.Finding {
		t.Helper()
		r, err := runner.New(pool, o)
		is.NoErr(err)
		defer r.Close()
		got := httptest.NewRecorder()
		api.Handler(r, api.Options{InsecureAllowAll: true}).ServeHTTP(got, httptest.NewRequest("GET", "/doctor", nil))
		return findingsOf(t, answer{status: got.Code, text: got.Body.String()})
	}
	strict := examine(runner.Options{PodName: "web-7", MaxAge: time.Hour, ApprovalTTL: time.Hour, Slots: 1000})
	is.True(hasFinding(strict, "limits", doctor.Healthy, "no job waits forever"))
	is.True(hasFinding(strict, "slots", doctor.Warning, "1000 slots share a pool"))
	is.True(hasFinding(strict, "clock", doctor.Healthy, "the clocks of the database and of web-7 agree"))
	lax := examine(runner.Options{Slots: 1})
	is.True(hasFinding(lax, "limits", doctor.Healthy, "jobs of 1 lane have no maximum age; jobs can await approval forever"))
	is.True(!hasFinding(lax, "slots", doctor.Warning, ""))
}

func TestDoctorFailedCheck(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r, err := runner.New(pool, runner.Options{Logger: slog.New(slog.DiscardHandler)})
	is.NoErr(err)
	defer r.Close()
	_, err = pool.Exec(t.Context(), `alter table trapeze.schedules rename to elsewhere`)
	is.NoErr(err)
	got := httptest.NewRecorder()
	api.Handler(r, api.Options{InsecureAllowAll: true}).ServeHTTP(got, httptest.NewRequest("GET", "/doctor", nil))
	findings := findingsOf(t, answer{status: got.Code, text: got.Body.String()})
	is.True(hasFinding(findings, "schedules", doctor.Failing, "check failed: "))
	is.True(hasFinding(findings, "lanes", doctor.Healthy, "1 lane open")) // the results of earlier checks are still reported
	is.True(hasFinding(findings, "limits", doctor.Healthy, "1 lane"))
}
