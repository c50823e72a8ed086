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

// statements are all statements of the package. TestEveryStatementIsListed keeps the list whole; a line each, by name, so that two changes meet rarely.
var statements = map[string]string{
	"approveSQL":           approveSQL,
	"auditSQL":             auditSQL,
	"auditTrailSQL":        auditTrailSQL,
	"awaitedSQL":           awaitedSQL,
	"boardApprovalsSQL":    boardApprovalsSQL,
	"boardDueSQL":          boardDueSQL,
	"boardGateSQL":         boardGateSQL,
	"boardLanesSQL":        boardLanesSQL,
	"boardParkedSQL":       boardParkedSQL,
	"boardPodsSQL":         boardPodsSQL,
	"boardRunningSQL":      boardRunningSQL,
	"boardSlotsSQL":        boardSlotsSQL,
	"branchesSQL":          branchesSQL,
	"branchJobsSQL":        branchJobsSQL,
	"branchStatesSQL":      branchStatesSQL,
	"bulkBegunSQL":         bulkBegunSQL,
	"bulkRestSQL":          bulkRestSQL,
	"cancelLiveSQL":        cancelLiveSQL,
	"cancelManySQL":        cancelManySQL,
	"cancelParkedSQL":      cancelParkedSQL,
	"checkpointSQL":        checkpointSQL,
	"checkTokenSQL":        checkTokenSQL,
	"claimSinceSQL":        claimSinceSQL,
	"claimSQL":             claimSQL,
	"claimSubjectsSQL":     claimSubjectsSQL,
	"clockSQL":             clockSQL,
	"closeLapsedSQL":       closeLapsedSQL,
	"completeSQL":          completeSQL,
	"doneStateSQL":         doneStateSQL,
	"dropPartitionSQL":     dropPartitionSQL,
	"emitManySQL":          emitManySQL,
	"emitSQL":              emitSQL,
	"endBranchesSQL":       endBranchesSQL,
	"endedBranchesSQL":     endedBranchesSQL,
	"endSQL":               endSQL,
	"endWaitingSQL":        endWaitingSQL,
	"enqueueSinceSQL":      enqueueSinceSQL,
	"enqueueSQL":           enqueueSQL,
	"ensurePartitionsSQL":  ensurePartitionsSQL,
	"existsSQL":            existsSQL,
	"expireSQL":            expireSQL,
	"exportEventsSQL":      exportEventsSQL,
	"exportJobsSQL":        exportJobsSQL,
	"fannedOutSQL":         fannedOutSQL,
	"fanOutSQL":            fanOutSQL,
	"feedSQL":              feedSQL,
	"finishBranchesSQL":    finishBranchesSQL,
	"finishSQL":            finishSQL,
	"foreignLaneSQL":       foreignLaneSQL,
	"forgetBatchSQL":       forgetBatchSQL,
	"forgetJobsSQL":        forgetJobsSQL,
	"forgiveSQL":           forgiveSQL,
	"handBackSQL":          handBackSQL,
	"heartbeatSQL":         heartbeatSQL,
	"heldSQL":              heldSQL,
	"holdSQL":              holdSQL,
	"horizonSQL":           horizonSQL,
	"idBlocksSQL":          idBlocksSQL,
	"inheritKeySQL":        inheritKeySQL,
	"inheritKeysSQL":       inheritKeysSQL,
	"jobEventsSQL":         jobEventsSQL,
	"jobExistsSQL":         jobExistsSQL,
	"jobsOfSQL":            jobsOfSQL,
	"jobSQL":               jobSQL,
	"jobsSQL":              jobsSQL,
	"keepSQL":              keepSQL,
	"laneGatesSQL":         laneGatesSQL,
	"laneUseSQL":           laneUseSQL,
	"leaveSQL":             leaveSQL,
	"lockDeferralSQL":      lockDeferralSQL,
	"lockFanOutSQL":        lockFanOutSQL,
	"lockJobsSQL":          lockJobsSQL,
	"lockKeySQL":           lockKeySQL,
	"lockKeysSQL":          lockKeysSQL,
	"lockLiveSQL":          lockLiveSQL,
	"marksSQL":             marksSQL,
	"missingDaysSQL":       missingDaysSQL,
	"nameSubmissionSQL":    nameSubmissionSQL,
	"newArgsSQL":           newArgsSQL,
	"notifySQL":            notifySQL,
	"offBalanceSQL":        offBalanceSQL,
	"oldDaysSQL":           oldDaysSQL,
	"openBranchesSQL":      openBranchesSQL,
	"openCountSQL":         openCountSQL,
	"openOfPipelineSQL":    openOfPipelineSQL,
	"overdueSQL":           overdueSQL,
	"ownerSQL":             ownerSQL,
	"ownJobsSQL":           ownJobsSQL,
	"overSQL":              overSQL,
	"parentSQL":            parentSQL,
	"parkSQL":              parkSQL,
	"partsSQL":             partsSQL,
	"pinSQL":               pinSQL,
	"pipelineEventsSQL":    pipelineEventsSQL,
	"pipelineSQL":          pipelineSQL,
	"pipelinesSQL":         pipelinesSQL,
	"podHealthSQL":         podHealthSQL,
	"podsSQL":              podsSQL,
	"progressSQL":          progressSQL,
	"promoteSQL":           promoteSQL,
	"prunePipelinesSQL":    prunePipelinesSQL,
	"prunePodsSQL":         prunePodsSQL,
	"pruneSubmissionsSQL":  pruneSubmissionsSQL,
	"readSubmissionSQL":    readSubmissionSQL,
	"recountSQL":           recountSQL,
	"recoverPageSQL":       recoverPageSQL,
	"registerSQL":          registerSQL,
	"reopenSQL":            reopenSQL,
	"reserveKeySQL":        reserveKeySQL,
	"reserveKeysSQL":       reserveKeysSQL,
	"reserveSubmissionSQL": reserveSubmissionSQL,
	"retryJobsSQL":         retryJobsSQL,
	"retryStateSQL":        retryStateSQL,
	"revokeDeferralSQL":    revokeDeferralSQL,
	"revokePartsSQL":       revokePartsSQL,
	"rolesOfSQL":           rolesOfSQL,
	"searchEventsSQL":      searchEventsSQL,
	"serverSQL":            serverSQL,
	"settledSQL":           settledSQL,
	"settleSlotsSQL":       settleSlotsSQL,
	"shortWaitSQL":         shortWaitSQL,
	"spineSQL":             spineSQL,
	"staleResultSQL":       staleResultSQL,
	"sweepsDueSQL":         sweepsDueSQL,
	"sweptSQL":             sweptSQL,
	"tablesSQL":            tablesSQL,
	"tellHandlerSQL":       tellHandlerSQL,
	"tokenSQL":             tokenSQL,
	"undeferSQL":           undeferSQL,
	"voidSlotsSQL":         voidSlotsSQL,
	"waitingSinceSQL":      waitingSinceSQL,
	"waitingSQL":           waitingSQL,
	"waitingWorkSQL":       waitingWorkSQL,
	"whereaboutsSQL":       whereaboutsSQL,
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
