package store

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

var update = flag.Bool("update", false, "write the plans of testdata/explain anew")

// hot are the statements that run for every job or every heartbeat. Their plans are kept, so that a change is seen in a
// review.
var hot = map[string]string{
	"enqueue": enqueueSQL.text, "claim": claimSQL.text, "claim_subjects": claimSubjectsSQL.text, "finish": finishSQL.text, "finish_alone": endSQL.text,
	"heartbeat": heartbeatSQL.text, "recover_page": recoverPageSQL.text, "promote": promoteSQL.text, "park": parkSQL.text,
	"hand_back": handBackSQL.text, "cancel_live": cancelLiveSQL, "hold": holdSQL.text, "progress": progressSQL.text, "keep": keepSQL.text, "emit": emitSQL.text, "emit_many": emitManySQL.text, "over": overSQL,
	"whereabouts": whereaboutsSQL.text, "missing_claims": missingClaimsSQL.text, "held_page": heldPageSQL.text, "finish_branches": finishBranchesSQL.text, "finish_branches_alone": endBranchesSQL.text,
	"fan_out": fanOutSQL.text, "waiting": waitingSQL.text, "end_waiting": endWaitingSQL.text, "off_balance": offBalanceSQL.text, "waiting_since": waitingSinceSQL, "prune_pipelines": prunePipelinesSQL, "branches": branchesSQL,
	"cancel_many": cancelManySQL, "open_branches": openBranchesSQL, "open_of_pipeline": openOfPipelineSQL, "complete": completeSQL, "claim_since": claimSinceSQL.text, "enqueue_since": enqueueSinceSQL.text, "marks": marksSQL.text,
	"board_lanes": boardLanesSQL, "board_due": boardDueSQL, "board_parked": boardParkedSQL, "standing": standingSQL, "own_jobs": ownJobsSQL, "jobs": jobsSQL, "open_jobs": openJobsSQL, "pipelines": pipelinesSQL, "own_pipelines": ownPipelinesSQL,
	"fleet": fleetSQL, "traces_of_fan_out": tracesOfFanOutSQL, "approve": approveSQL, "expire": expireSQL, "overdue": overdueSQL,
	"match_open": matchOpenSQL, "match_ended": matchEndedSQL, "move_live": moveLiveSQL, "move_parked": moveParkedSQL, "nice_live": niceLiveSQL, "nice_parked": niceParkedSQL, "retry_jobs": retryJobsSQL, "retry_state": retryStateSQL,
	"news": newsSQL, "feed_page": feedPageSQL, "notes": notesSQL,
	"take_schedules": takeSchedulesSQL, "schedules_active": schedulesActiveSQL, "next_fire": nextFireSQL, "plan_schedules": planSchedulesSQL, "insert_fires": insertFiresSQL, "settle_fires": settleFiresSQL,
	"jobs_of_pipeline": jobsOfPipelineSQL, "looked": lookedSQL, "looked_pipelines": lookedPipelinesSQL, "own_looked": ownLookedSQL,
	"worker_claim": guestClaimSQL.text, "worker_claim_since": guestSinceSQL.text, "worker_claim_subjects": guestSubjectsSQL.text,
	"ended_jobs": endedJobsSQL, "id_blocks": idBlocksSQL.text, "enqueue_free": enqueueFreeSQL.text, "rare_count": rareCountSQL, "rare_pipelines": rarePipelinesSQL,
	"current_run": currentRunSQL, "named_run": namedRunSQL,
}

// whole finds scans of a table that grows with the work in which no index says where to begin, and bitmaps over one, which
// gather all rows before the first is used.
var whole = regexp.MustCompile(`(Seq Scan|Bitmap Heap Scan) on (jobs|live|done\w*|parked|job_events\w*|current_runs|fan_outs|parts|schedule_fires)\b` +
	`|Index (Only )?Scan( Backward)? using \w+ on (jobs|live|done\w*|parked|job_events\w*|current_runs|fan_outs|parts|schedule_fires)\b.*\n +[^I ].*`)

func TestHotStatementsKeepTheirPlans(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	conn := pinned(t, pgtest.URL(t))
	var major int
	is.NoErr(conn.QueryRow(t.Context(), `select current_setting('server_version_num')::int / 10000`).Scan(&major))
	for name, sql := range hot {
		plan := explain(t, conn, name, sql, "costs off")
		for _, found := range whole.FindAllString(plan, -1) {
			if name == "heartbeat" && strings.Contains(found, "parked_for_promotion") {
				continue // its first row, by the order of the index
			}
			t.Errorf("%s reads a whole table: %s:\n%s", name, found, plan)
		}
		golden := filepath.Join("testdata", "explain", name+".txt")
		plan = fmt.Sprintf("PostgreSQL %d\n%s", major, steady(plan))
		if *update {
			is.NoErr(os.WriteFile(golden, []byte(plan), 0o644))
			continue
		}
		want, err := os.ReadFile(golden)
		is.NoErr(err)
		version, _, _ := strings.Cut(string(want), "\n")
		if version != fmt.Sprintf("PostgreSQL %d", major) {
			continue // another release plans differently; that it scans no table whole was checked
		}
		if plan != string(want) {
			t.Errorf("%s has another plan; look at it, then go test ./internal/store -run Plans -update\ngot:\n%s\nwant:\n%s", name, plan, want)
		}
	}
}

func TestStatementsOfThePinnedRoundTripAreThePins(t *testing.T) {
	is := is.New(t)
	for name, value := range pins {
		if name == "idle_in_transaction_session_timeout" {
			continue // it has no meaning within one round trip
		}
		is.True(strings.Contains(pinSQL, fmt.Sprintf("set_config('%s', '%s', true)", name, value)))
	}
}

// pinned connects with the pins of the store's own pool.
func pinned(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range pins {
		config.RuntimeParams[name] = value
	}
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return conn
}

// inOrder puts the literals for a statement's arguments in the order of their numbers; null where there is none.
func (s *statement) inOrder(literals map[string]string) (list []string) {
	for _, name := range s.names {
		list = append(list, cmp.Or(literals[name], "null"))
	}
	return list
}

// explain returns the generic plan of a statement. The values of its arguments make no difference to it.
func explain(t testing.TB, conn *pgx.Conn, name, sql, options string, args ...string) string {
	t.Helper()
	prepared, err := conn.Prepare(t.Context(), name, sql)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for len(args) < len(prepared.ParamOIDs) {
		args = append(args, "null")
	}
	result, err := conn.Query(t.Context(), fmt.Sprintf("explain (%s) execute %s(%s)", options, name, strings.Join(args, ", ")),
		pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	lines, err := pgx.CollectRows(result, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return strings.Join(lines, "\n") + "\n"
}

var (
	dayName  = regexp.MustCompile(`_\d{8}`)
	dayAlias = regexp.MustCompile(`\b([a-z]\w*)_\d+\b`)
)

// steady takes out of a plan what changes with the calendar: the names of days, and the repeats of a plan for each day.
func steady(plan string) string {
	plan = dayAlias.ReplaceAllString(dayName.ReplaceAllString(plan, "_DAY"), "${1}_n")
	lines := strings.Split(strings.TrimSuffix(plan, "\n"), "\n")
	for size := 1; size <= 3; size++ {
		var kept []string
		for i := 0; i < len(lines); {
			end := min(i+size, len(lines))
			block := lines[i:end]
			kept = append(kept, block...)
			for i += len(block); i+size <= len(lines) && len(block) == size && slices.Equal(lines[i:i+size], block); i += size {
			}
			if size > 1 && len(block) == size && !(i-end >= size) {
				// No repeat begins here: go on with the next line.
				kept, i = kept[:len(kept)-size+1], end-size+1
			}
		}
		lines = kept
	}
	return strings.Join(lines, "\n") + "\n"
}
