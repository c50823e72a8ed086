package runner_test

import (
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/runner"
)

// raw is a job whose kind is chosen at run time, and does is a handler for it.
type (
	raw    = runner.Job[runner.Raw]
	does   = runner.Func[runner.Raw]
	tester = podtest.Tester
	endOf  = podtest.End
)

var (
	make1        = podtest.Make
	start        = podtest.Start
	run          = podtest.Run
	of           = podtest.Of
	gate         = podtest.Gate
	nothing      = podtest.Nothing
	enqueue      = podtest.Enqueue
	get          = podtest.Get
	begun        = podtest.Begun
	inState      = podtest.InState
	ended        = podtest.Ended
	told         = podtest.Events
	why          = podtest.Why
	message      = podtest.Message
	text         = podtest.Text
	scraped      = podtest.Scraped
	value        = podtest.Value
	finished     = podtest.Finished
	allCounted   = podtest.AllCounted
	exec         = podtest.Exec
	quiet        = podtest.Quiet
	running      = podtest.Running
	counted      = podtest.Counted
	checkHistory = podtest.CheckHistory
)

const takesClaim = podtest.TakesClaim

func one[T any](t tester, pool *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	return podtest.One[T](t, pool, sql, args...)
}

func column[T any](t tester, pool *pgxpool.Pool, sql string, args ...any) []T {
	t.Helper()
	return podtest.Column[T](t, pool, sql, args...)
}
