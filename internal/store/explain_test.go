package store

import (
	"cmp"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/plantest"
)

// hot lists the statements that run for every job or every heartbeat. Their plans are stored, so that changes show up in reviews.
var hot = map[string]string{
	"enqueue": enqueueSQL.text, "claim": claimSQL.text, "admit": admitSQL.text, "yield": yieldSQL.text, "missed": missedSQL.text, "admit_keys": admitKeysSQL.text, "finish": finishSQL.text,
	"finish_alone": endSQL.text, "heartbeat": heartbeatSQL.text, "recover_page": recoverPageSQL.text, "promote": promoteSQL.text,
	"park": parkSQL.text, "hand_back": handBackSQL.text, "hold": holdSQL.text, "progress": progressSQL.text, "keep": keepSQL.text,
	"emit": emitSQL.text, "emit_many": emitManySQL.text, "claim_outcome": claimOutcomeSQL.text, "missing_claims": missingClaimsSQL.text, "note_started": noteStartedSQL.text,
	"held_page": heldPageSQL.text, "finish_branches": finishBranchesSQL.text, "finish_branches_alone": endBranchesSQL.text,
	"fan_out": fanOutSQL.text, "waiting": waitingSQL.text, "end_waiting": endWaitingSQL.text, "off_balance": offBalanceSQL.text,
	"marks": marksSQL.text, "take_starts": takeStartsSQL.text, "give_starts": giveStartsSQL.text, "id_blocks": idBlocksSQL.text,
	"enqueue_free": enqueueFreeSQL.text, "hold_to_end": holdToEndSQL.text, "hold_group": holdGroupSQL.text,
	"end_one": endOneSQL.text, "finish_one": finishOneSQL.text, "enqueue_one": enqueueOneSQL.text,
	"enqueue_one_free": enqueueOneFreeSQL.text, "lanes_with_work": lanesWithWorkSQL.text,
}

func TestHotStatementsKeepTheirPlans(t *testing.T) {
	t.Parallel()
	s, err := New(t.Context(), pgtest.Pool(t), Options{})
	is.New(t).NoErr(err)
	defer s.Close()
	plantest.Keep(t, plantest.Pinned(t, s.Pool()), hot)
}

// InOrder returns the literals for the arguments of a statement, in order of their placeholder numbers. Missing arguments are null.
func (s *statement) InOrder(literals map[string]string) (list []string) {
	for _, name := range s.names {
		list = append(list, cmp.Or(literals[name], "null"))
	}
	return list
}

// While a snapshot is held for hours, the table and its indexes grow large, but the statistics count only the few rows that are not dead.
// The planner then considers reading a whole index cheaper than one lookup for each job of a batch.
func TestHotStatementPlansDeadRows(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	s, err := New(t.Context(), pool, Options{})
	is.NoErr(err)
	defer s.Close()
	held, err := pool.Begin(t.Context())
	is.NoErr(err)
	defer func() { _ = held.Rollback(t.Context()) }()
	_, err = held.Exec(t.Context(), `select pg_current_xact_id()`) // rows that become dead from now on cannot be vacuumed
	is.NoErr(err)
	pgtest.Exec(t, pool, `insert into trapeze.live (id, ready_at, event_no, priority, state, lane, kind, subject)
		select n, now(), 1, 0, 'pending', 'default', 'k', '' from generate_series(1, 30000) n`)
	pgtest.Exec(t, pool, `delete from trapeze.live where id > 5`)
	pgtest.Exec(t, pool, `vacuum analyze trapeze.live`)
	conn := plantest.Pinned(t, s.Pool())
	for name, sql := range hot {
		plantest.NotWhole(t, name, plantest.Explain(t, conn, name, sql, "costs off"))
	}
}

// Before the tables have statistics, the planner prefers the smallest index, even if all entries of a lane must be read from it and sorted.
func TestHotStatementPlansLargeBacklog(t *testing.T) {
	t.Parallel()
	s, err := New(t.Context(), pgtest.Pool(t), Options{})
	is.New(t).NoErr(err)
	defer s.Close()
	for _, why := range []string{"key", "subject"} {
		pgtest.Exec(t, s.Pool(), `truncate trapeze.parked`)
		pgtest.Exec(t, s.Pool(), `insert into trapeze.parked (id, why, run_after, event_no, priority, lane, kind, subject, key)
			select n, '`+why+`', now(), 1, 0, 'default', 'invoices.recalculate', 'large-company', 'tenants/large-company' from generate_series(1, 20000) n`)
		conn := plantest.Pinned(t, s.Pool())
		for name, sql := range hot {
			for line := range strings.Lines(plantest.Explain(t, conn, name, sql, "costs off")) {
				if strings.Contains(line, "parked_of_lane") || strings.Contains(line, "Seq Scan on parked") {
					t.Errorf("%s reads all waiting jobs of a lane: %s", name, line)
				}
			}
		}
	}
}
