package store

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// statements are all statements of the package. TestEveryStatementIsListed keeps the list whole.
var statements = map[string]string{
	"pinSQL": pinSQL, "bulkBegunSQL": bulkBegunSQL, "bulkRestSQL": bulkRestSQL, "idBlocksSQL": idBlocksSQL, "enqueueSQL": enqueueSQL, "existsSQL": existsSQL,
	"reserveKeySQL": reserveKeySQL, "lockKeySQL": lockKeySQL, "inheritKeySQL": inheritKeySQL, "reserveSubmissionSQL": reserveSubmissionSQL,
	"readSubmissionSQL": readSubmissionSQL, "notifySQL": notifySQL, "claimSQL": claimSQL, "claimSinceSQL": claimSinceSQL, "enqueueSinceSQL": enqueueSinceSQL, "marksSQL": marksSQL,
	"claimSubjectsSQL": claimSubjectsSQL, "finishSQL": finishSQL, "endSQL": endSQL, "openCountSQL": openCountSQL, "pipelineSQL": pipelineSQL, "pipelinesSQL": pipelinesSQL, "openOfPipelineSQL": openOfPipelineSQL, "spineSQL": spineSQL, "branchStatesSQL": branchStatesSQL, "branchJobsSQL": branchJobsSQL,
	"retryJobsSQL": retryJobsSQL, "reopenSQL": reopenSQL, "retryStateSQL": retryStateSQL, "newArgsSQL": newArgsSQL, "endedBranchesSQL": endedBranchesSQL, "undeferSQL": undeferSQL, "revokeDeferralSQL": revokeDeferralSQL, "revokePartsSQL": revokePartsSQL, "forgetBatchSQL": forgetBatchSQL, "lockJobsSQL": lockJobsSQL, "waitingSinceSQL": waitingSinceSQL, "lockFanOutSQL": lockFanOutSQL, "recountSQL": recountSQL, "prunePipelinesSQL": prunePipelinesSQL, "cancelManySQL": cancelManySQL, "openBranchesSQL": openBranchesSQL, "tokenSQL": tokenSQL, "checkTokenSQL": checkTokenSQL, "completeSQL": completeSQL, "partsSQL": partsSQL, "endBranchesSQL": endBranchesSQL, "finishBranchesSQL": finishBranchesSQL, "fanOutSQL": fanOutSQL, "lockDeferralSQL": lockDeferralSQL, "fannedOutSQL": fannedOutSQL,
	"offBalanceSQL": offBalanceSQL, "waitingSQL": waitingSQL, "endWaitingSQL": endWaitingSQL, "branchesSQL": branchesSQL, "reserveKeysSQL": reserveKeysSQL, "lockKeysSQL": lockKeysSQL, "inheritKeysSQL": inheritKeysSQL, "holdSQL": holdSQL, "whereaboutsSQL": whereaboutsSQL,
	"parkSQL": parkSQL, "promoteSQL": promoteSQL, "handBackSQL": handBackSQL, "heldSQL": heldSQL, "lockLiveSQL": lockLiveSQL, "shortWaitSQL": shortWaitSQL, "tellHandlerSQL": tellHandlerSQL, "nameSubmissionSQL": nameSubmissionSQL,
	"registerSQL": registerSQL, "heartbeatSQL": heartbeatSQL, "leaveSQL": leaveSQL, "closeLapsedSQL": closeLapsedSQL,
	"sweepsDueSQL": sweepsDueSQL, "sweptSQL": sweptSQL, "recoverPageSQL": recoverPageSQL, "cancelLiveSQL": cancelLiveSQL,
	"cancelParkedSQL": cancelParkedSQL, "doneStateSQL": doneStateSQL, "jobExistsSQL": jobExistsSQL,
	"progressSQL": progressSQL, "checkpointSQL": checkpointSQL, "forgiveSQL": forgiveSQL, "keepSQL": keepSQL, "emitSQL": emitSQL, "emitManySQL": emitManySQL,
	"staleResultSQL": staleResultSQL, "parentSQL": parentSQL, "jobSQL": jobSQL, "jobsSQL": jobsSQL, "overSQL": overSQL, "jobsOfSQL": jobsOfSQL,
	"exportJobsSQL": exportJobsSQL, "podsSQL": podsSQL, "laneUseSQL": laneUseSQL, "foreignLaneSQL": foreignLaneSQL,
	"jobEventsSQL": jobEventsSQL, "searchEventsSQL": searchEventsSQL, "pipelineEventsSQL": pipelineEventsSQL, "feedSQL": feedSQL,
	"exportEventsSQL": exportEventsSQL, "ensurePartitionsSQL": ensurePartitionsSQL, "oldDaysSQL": oldDaysSQL,
	"forgetJobsSQL": forgetJobsSQL, "dropPartitionSQL": dropPartitionSQL, "prunePodsSQL": prunePodsSQL,
	"pruneSubmissionsSQL": pruneSubmissionsSQL, "settledSQL": settledSQL, "awaitedSQL": awaitedSQL, "approveSQL": approveSQL, "expireSQL": expireSQL, "overdueSQL": overdueSQL, "settleSlotsSQL": settleSlotsSQL, "voidSlotsSQL": voidSlotsSQL,
}

func TestEveryStatementIsListed(t *testing.T) {
	is := is.New(t)
	files, err := filepath.Glob("*.go")
	is.NoErr(err)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		is.NoErr(err)
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for _, id := range spec.Names {
				if strings.HasSuffix(id.Name, "SQL") && !strings.HasSuffix(id.Name, "TailSQL") && id.Name != "placeSQL" && id.Name != "historySQL" {
					if _, listed := statements[id.Name]; !listed {
						t.Errorf("%s in %s is not in the list of statements", id.Name, name)
					}
				}
			}
			return true
		})
	}
}

func TestEveryStatementPrepares(t *testing.T) {
	is := is.New(t)
	conn, err := pgx.Connect(t.Context(), pgtest.URL(t))
	is.NoErr(err)
	defer conn.Close(t.Context())
	for name, sql := range statements {
		if _, err := conn.Prepare(t.Context(), name, sql); err != nil {
			t.Errorf("%s does not prepare: %v", name, err)
		}
	}
}
