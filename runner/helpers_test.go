package runner_test

import (
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/runner"
)

// raw is a job whose kind is chosen at run time, and handler runs it.
type (
	raw     = runner.Job[runner.Raw]
	handler = runner.Func[runner.Raw]
	tester  = podtest.Tester
	endOf   = podtest.End
)

var (
	newRunner      = podtest.New
	start          = podtest.Start
	run            = podtest.Run
	rawArgs        = podtest.RawArgs
	latch          = podtest.Latch
	succeed        = podtest.Succeed
	enqueue        = podtest.Enqueue
	get            = podtest.Get
	enqueueStarted = podtest.EnqueueStarted
	inState        = podtest.InState
	waitEnded      = podtest.WaitEnded
	eventsOf       = podtest.Events
	reasonOf       = podtest.ReasonOf
	message        = podtest.Message
	deref          = podtest.Deref
	scraped        = podtest.Scraped
	metricValue    = podtest.MetricValue
	finished       = podtest.Finished
	allCounted     = podtest.AllCounted
	exec           = pgtest.Exec
	quiet          = podtest.Quiet
	running        = podtest.Running
	counted        = podtest.Counted
	checkHistory   = podtest.CheckHistory
)

const takesClaim = podtest.TakesClaim

func queryOne[T any](t tester, pool *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	return pgtest.QueryOne[T](t, pool, sql, args...)
}

func column[T any](t tester, pool *pgxpool.Pool, sql string, args ...any) []T {
	t.Helper()
	return pgtest.Column[T](t, pool, sql, args...)
}
