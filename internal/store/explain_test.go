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

// hot lists the statements that run for every job or every heartbeat. Their plans are stored, so that changes show up in reviews.
var hot = map[string]string{
	"enqueue": enqueueSQL.text, "claim": claimSQL.text, "claim_subjects": claimSubjectsSQL.text, "finish": finishSQL.text,
	"finish_alone": endSQL.text, "heartbeat": heartbeatSQL.text, "recover_page": recoverPageSQL.text, "promote": promoteSQL.text,
	"park": parkSQL.text, "hand_back": handBackSQL.text, "hold": holdSQL.text, "progress": progressSQL.text, "keep": keepSQL.text,
	"emit": emitSQL.text, "emit_many": emitManySQL.text, "claim_outcome": claimOutcomeSQL.text, "missing_claims": missingClaimsSQL.text, "note_started": noteStartedSQL.text,
	"held_page": heldPageSQL.text, "finish_branches": finishBranchesSQL.text, "finish_branches_alone": endBranchesSQL.text,
	"fan_out": fanOutSQL.text, "waiting": waitingSQL.text, "end_waiting": endWaitingSQL.text, "off_balance": offBalanceSQL.text,
	"claim_since": claimSinceSQL.text, "enqueue_since": enqueueSinceSQL.text, "marks": marksSQL.text, "worker_claim": workerClaimSQL.text,
	"worker_claim_since": workerSinceSQL.text, "worker_claim_subjects": workerSubjectsSQL.text, "id_blocks": idBlocksSQL.text,
	"enqueue_free": enqueueFreeSQL.text, "hold_to_end": holdToEndSQL.text, "hold_group": holdGroupSQL.text,
	"end_one": endOneSQL.text, "finish_one": finishOneSQL.text, "enqueue_one": enqueueOneSQL.text, "enqueue_one_since": enqueueOneSinceSQL.text,
	"enqueue_one_free": enqueueOneFreeSQL.text,
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
			continue // an idle timeout has no effect within a single round trip
		}
		is.True(strings.Contains(pinSQL, fmt.Sprintf("set_config('%s', '%s', true)", name, value)))
		is.True(strings.Contains(keepSettingsSQL, fmt.Sprintf("set_config('trapeze.%s', current_setting('%[1]s'), true)", name)))
		is.True(strings.Contains(restoreSettingsSQL, fmt.Sprintf("set_config('%s', current_setting('trapeze.%[1]s'), true)", name)))
	}
}

// InOrder returns the literals for the arguments of a statement, in order of their placeholder numbers. Missing arguments are null.
func (s *statement) InOrder(literals map[string]string) (list []string) {
	for _, name := range s.names {
		list = append(list, cmp.Or(literals[name], "null"))
	}
	return list
}
