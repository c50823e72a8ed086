package store

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// The following exports give the tests of package store_test access to internals.

type (
	Statement = statement
	Args      = args
)

var (
	AdmitSQL         = admitSQL
	AdvanceIDsSQL    = advanceIDsSQL
	ClaimSQL         = claimSQL
	AdmitKeysSQL     = admitKeysSQL
	EndSQL           = endSQL
	EndColumns       = endings.names("of_group", "was_impaired")
	EndRows          = "unnest(" + endings.params("of_group", "was_impaired") + ") as e(" + EndColumns + ")"
	EnqueueSQL       = enqueueSQL
	FinishSQL        = finishSQL
	HeartbeatSQL     = heartbeatSQL
	HeldPageSQL      = heldPageSQL
	MarksSQL         = marksSQL
	MissingClaimsSQL = missingClaimsSQL
	PromoteSQL       = promoteSQL
	RegisterSQL      = registerSQL
	SettleSlotsSQL   = settleSlotsSQL
	YieldSQL         = yieldSQL

	Argument = argument
	Do       = do
	Hot      = hot
	Pins     = pins
)

const (
	AttemptsApart  = attemptsApart
	BlockSize      = blockSize
	BulkFrom       = bulkFrom
	FencesPerEpoch = fencesPerEpoch
	LanesWanted    = `unnest(@lanes::text[], @wants::int[], @aheads::int[], @firsts::int[], @lasts::int[]) as w(lane, want, ahead, first, last)`
	MissedPage     = missedPage
	OutageAfter    = outageAfter
	TooMany        = tooMany
)

// By builds arguments from alternating names and values.
func By(pairs ...any) (list Args) {
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, args{{pairs[i].(string), pairs[i+1]}}...)
	}
	return list
}

// With returns a copy of the statement with a different text.
func (s *statement) With(text string) *Statement {
	with := *s
	with.text = text
	return &with
}

func (s *statement) Text() string         { return s.text }
func (s *statement) At(name string) int   { return s.at[name] + 1 }
func (s *statement) Names() []string      { return s.names }
func (s *Store) Asked() *atomic.Int64     { return s.asked }
func (s *Store) ForgetCluster()           { s.cluster = &cluster{} }
func (db *Database) Wait(d time.Duration) { db.wait, db.shortWait = d, d }

// ShortWait sets the time for which operator commands wait for a locked row.
func (db *Database) ShortWait(d time.Duration) { db.shortWait = d }

// SlowFrom sets the execution time above which a statement is considered slow, and clears the time of the last replanning round.
func (db *Database) SlowFrom(d time.Duration) { db.plans.slow, db.plans.at = d, time.Time{} }

// Ran reports whether a statement that took the given time begins a new round of replanning.
func (db *Database) Ran(took time.Duration) bool { return db.plans.ran(took) }

// Run runs a statement with named arguments.
func Run[T any](ctx context.Context, s *Store, scan pgx.RowToFunc[T], st *Statement, by Args) ([]T, error) {
	return run(ctx, s, scan, st, by)
}

// RunClaim runs a statement and reads its result as a claim.
func RunClaim(ctx context.Context, s *Store, st *Statement, by Args) (Claims, error) {
	var state claimState
	list, err := run(ctx, s, state.scan, st, by)
	if err != nil {
		return Claims{}, err
	}
	return state.claims(list), nil
}

// FinishIn finishes one claim in the test's transaction, as [Store.Finish] does.
func (s *Store) FinishIn(ctx context.Context, db DB, podID string, e Ending) (Ended, error) {
	batch := &pgx.Batch{}
	ended, err := queueFinish(batch, s, podID, []Ending{e})
	if err == nil {
		err = db.SendBatch(ctx, batch).Close()
	}
	end, ok := ended[e.ID]
	if err == nil && !ok {
		err = job.ErrLeaseLost
	}
	return end, err
}
