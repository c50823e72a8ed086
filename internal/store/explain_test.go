package store

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/plantest"
)

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

func TestHotStatementsKeepTheirPlans(t *testing.T) {
	t.Parallel()
	s, err := New(t.Context(), pgtest.Pool(t), Options{})
	is.New(t).NoErr(err)
	defer s.Close()
	plantest.Keep(t, plantest.Pinned(t, s.Pool()), hot)
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

// InOrder puts the literals for a statement's arguments in the order of their numbers; null where there is none.
func (s *statement) InOrder(literals map[string]string) (list []string) {
	for _, name := range s.names {
		list = append(list, cmp.Or(literals[name], "null"))
	}
	return list
}
