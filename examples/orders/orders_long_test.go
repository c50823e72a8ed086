//go:build long

package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/runner/runnertest"
)

// deaths lists the points at which pods die.
var deaths = []runnertest.Point{runnertest.AfterClaim, runnertest.BeforeFinish, runnertest.DuringCommit, runnertest.AfterFinish}

// A compensation survives more crashes than other jobs, because its kind is registered with a higher crash limit.
func TestCompensationWithHigherCrashLimit(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	s := open(t)
	for range 5 {
		s.DieAt(runnertest.BeforeFinish, "release")
	}
	s.order("moon", "lamp", "moon", "visa", 4200)
	s.finish()
	is.Equal(s.Crashes(), 5)
	is.Equal(s.state("moon"), "refunded")
	s.settled()
}

func TestOrderCancelledDuringPayment(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	s := open(t)
	s.order("1", "lamp", "north", "visa", 4200)
	s.RunUntilIdle() // the charge has been requested, but the webhook has not arrived yet
	status, _ := call(t, "DELETE", s.url+"/orders/1", "")
	is.Equal(status, http.StatusAccepted)
	s.finish()
	is.Equal(s.state("1"), "refunded")
	is.Equal(s.provider.refunds["1"], 1)
	is.Equal(len(s.provider.receipts), 0) // the late webhook was accepted
	s.settled()
}

func TestDailyReport(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	s := open(t)
	for days := 1; days <= 3; days++ {
		s.Advance(24 * time.Hour)
		s.finish()
		is.Equal(len(s.Jobs("daily_report")), days)
		is.Equal(len(s.Jobs("store_report")), days) // the join runs even if no region had orders
	}
}

func TestReportLinePerRegion(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	s := open(t)
	s.order("1", "lamp", "north", "visa", 4200)
	s.order("2", "lamp", "south", "visa", 1000)
	s.order("3", "lamp", "south", "visa", 500)
	s.order("4", "lamp", "moon", "visa", 500)
	s.finish()
	const day = "2026-03-01"
	_, err := s.pool.Exec(t.Context(), `update orders set placed_at = '2026-03-01 12:00Z'`)
	is.NoErr(err)
	for range 2 {
		status, _ := call(t, "POST", s.url+"/reports/"+day, "")
		is.Equal(status, http.StatusAccepted)
	}
	s.finish()
	is.Equal(len(s.Jobs("daily_report")), 1) // the second request returned the first job
	_, lines := call(t, "GET", s.url+"/reports/"+day, "")
	is.Equal(strings.ReplaceAll(lines, " ", ""),
		`[{"cents":0,"region":"moon","shipped":0},{"cents":4200,"region":"north","shipped":1},{"cents":1500,"region":"south","shipped":2}]`)

	s.DieAt(runnertest.AfterClaim, "store_report")
	s.Enqueue(DailyReport{}) // submits the same job as the schedule, a report for the previous day, which had no orders
	s.finish()
	var yesterday string
	is.NoErr(s.pool.QueryRow(t.Context(), `select day::text from reports where day <> $1::text::date`, day).Scan(&yesterday))
	_, lines = call(t, "GET", s.url+"/reports/"+yesterday, "")
	is.Equal(lines, "[]")
}

func TestLargeOrderApproval(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	s := open(t)
	s.order("yes", "piano", "north", "visa", large)
	s.order("no", "piano", "north", "visa", large)
	s.finish()
	is.Equal(len(s.provider.charges), 0) // nothing is charged before the approval
	for path, method := range map[string]string{"/orders/yes/approve": "POST", "/orders/no": "DELETE"} {
		status, answer := call(t, method, s.url+path, "")
		is.Equal(status, http.StatusAccepted)
		t.Log(path, answer)
	}
	s.finish()
	is.Equal(s.state("yes"), "shipped")
	is.Equal(s.state("no"), "refunded")
	is.Equal(s.provider.charges["no"], 0)
	status, _ := call(t, "DELETE", s.url+"/orders/yes", "")
	is.Equal(status, http.StatusConflict) // the order is already being shipped
	s.settled()
}
