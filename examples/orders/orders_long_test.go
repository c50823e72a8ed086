//go:build long

package main

import (
	"net/http"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/runner/runnertest"
)

// deaths lists the points at which pods die.
var deaths = []runnertest.Point{runnertest.AfterClaim, runnertest.BeforeFinish, runnertest.InFlush, runnertest.AfterFinish}

// A compensation survives more crashes than other jobs, because its kind is registered with a higher crash limit.
func TestAReleaseThatKillsFivePodsStillHappens(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	s := open(t)
	for range 5 {
		s.DieAt(runnertest.BeforeFinish, "release")
	}
	s.order("moon", "lamp", "moon", "visa", 4200)
	s.finish()
	is.Equal(s.Deaths(), 5)
	is.Equal(s.state("moon"), "refunded")
	s.settled()
}

func TestAnOrderThatIsCancelledWhileItsPaymentIsUnderWayIsRefunded(t *testing.T) {
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

func TestTheReportIsMadeEveryMorning(t *testing.T) {
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
