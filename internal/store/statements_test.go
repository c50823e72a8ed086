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
	"adoptSQL":             adoptSQL,
	"approveSQL":           approveSQL,
	"asksApprovalSQL":      asksApprovalSQL,
	"auditSQL":             auditSQL,
	"auditTrailSQL":        auditTrailSQL,
	"awaitedSQL":           awaitedSQL,
	"beatsSQL":             beatsSQL,
	"boardApprovalsSQL":    boardApprovalsSQL,
	"boardDueSQL":          boardDueSQL,
	"boardGateSQL":         boardGateSQL,
	"boardLanesSQL":        boardLanesSQL,
	"boardParkedSQL":       boardParkedSQL,
	"boardPodsSQL":         boardPodsSQL,
	"boardRunningSQL":      boardRunningSQL,
	"boardSlotsSQL":        boardSlotsSQL,
	"bootKindsSQL":         bootKindsSQL,
	"bootLaneSQL":          bootLaneSQL,
	"branchesSQL":          branchesSQL,
	"branchJobsSQL":        branchJobsSQL,
	"branchStatesSQL":      branchStatesSQL,
	"bulkBegunSQL":         bulkBegunSQL,
	"bulkRestSQL":          bulkRestSQL,
	"cancelLiveSQL":        cancelLiveSQL,
	"cancelManySQL":        cancelManySQL,
	"cancelParkedSQL":      cancelParkedSQL,
	"changePlansSQL":       changePlansSQL,
	"checkpointSQL":        checkpointSQL,
	"checkTokenSQL":        checkTokenSQL,
	"claimSinceSQL":        claimSinceSQL,
	"claimSQL":             claimSQL,
	"claimSubjectsSQL":     claimSubjectsSQL,
	"clockSQL":             clockSQL,
	"closeLapsedSQL":       closeLapsedSQL,
	"completeSQL":          completeSQL,
	"countMovesSQL":        countMovesSQL,
	"createLaneSQL":        createLaneSQL,
	"deletableSQL":         deletableSQL,
	"deleteEndsSQL":        deleteEndsSQL,
	"deleteLaneSQL":        deleteLaneSQL,
	"deleteRoleSQL":        deleteRoleSQL,
	"doneStateSQL":         doneStateSQL,
	"drainLaneSQL":         drainLaneSQL,
	"drainPodsSQL":         drainPodsSQL,
	"dropKindsSQL":         dropKindsSQL,
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
	"fateSQL":              fateSQL,
	"feedLagSQL":           feedLagSQL,
	"feedNowSQL":           feedNowSQL,
	"feedPageSQL":          feedPageSQL,
	"feedSQL":              feedSQL,
	"finishBranchesSQL":    finishBranchesSQL,
	"finishSQL":            finishSQL,
	"fleetSQL":             fleetSQL,
	"foreignLaneSQL":       foreignLaneSQL,
	"forgetBatchSQL":       forgetBatchSQL,
	"forgetJobsSQL":        forgetJobsSQL,
	"forgiveSQL":           forgiveSQL,
	"gateRowSQL":           gateRowSQL,
	"gateSQL":              gateSQL,
	"giveKindsSQL":         giveKindsSQL,
	"grantRoleSQL":         grantRoleSQL,
	"guestSQL":             guestSQL,
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
	"keysOfSQL":            keysOfSQL,
	"laneGatesSQL":         laneGatesSQL,
	"laneJobsSQL":          laneJobsSQL,
	"laneUseSQL":           laneUseSQL,
	"leaveSQL":             leaveSQL,
	"lockDeferralSQL":      lockDeferralSQL,
	"lockFanOutSQL":        lockFanOutSQL,
	"lockGateSQL":          lockGateSQL,
	"lockJobsSQL":          lockJobsSQL,
	"lockKeySQL":           lockKeySQL,
	"lockKeysSQL":          lockKeysSQL,
	"lockKindsSQL":         lockKindsSQL,
	"lockLaneSQL":          lockLaneSQL,
	"lockLiveSQL":          lockLiveSQL,
	"lockPodsSQL":          lockPodsSQL,
	"marksSQL":             marksSQL,
	"matchEndedSQL":        matchEndedSQL,
	"matchOpenSQL":         matchOpenSQL,
	"missingDaysSQL":       missingDaysSQL,
	"moveKindsSQL":         moveKindsSQL,
	"moveLiveSQL":          moveLiveSQL,
	"moveParkedSQL":        moveParkedSQL,
	"nameSubmissionSQL":    nameSubmissionSQL,
	"newArgsSQL":           newArgsSQL,
	"newsSQL":              newsSQL,
	"niceLiveSQL":          niceLiveSQL,
	"niceParkedSQL":        niceParkedSQL,
	"notesSQL":             notesSQL,
	"notifySettingsSQL":    notifySettingsSQL,
	"notifySQL":            notifySQL,
	"offBalanceSQL":        offBalanceSQL,
	"oldDaysSQL":           oldDaysSQL,
	"openBranchesSQL":      openBranchesSQL,
	"openCountSQL":         openCountSQL,
	"openIDsSQL":           openIDsSQL,
	"openJobsSQL":          openJobsSQL,
	"openOfPipelineSQL":    openOfPipelineSQL,
	"operatorEventSQL":     operatorEventSQL,
	"openGuestSQL":         openGuestSQL,
	"overdueSQL":           overdueSQL,
	"overSQL":              overSQL,
	"ownerSQL":             ownerSQL,
	"ownJobsSQL":           ownJobsSQL,
	"ownPipelinesSQL":      ownPipelinesSQL,
	"parentSQL":            parentSQL,
	"parkSQL":              parkSQL,
	"partsSQL":             partsSQL,
	"pinSQL":               pinSQL,
	"pipelineEventsSQL":    pipelineEventsSQL,
	"pipelineNewsSQL":      pipelineNewsSQL,
	"pipelineSQL":          pipelineSQL,
	"pipelinesSQL":         pipelinesSQL,
	"plansSQL":             plansSQL,
	"podHealthSQL":         podHealthSQL,
	"podsSQL":              podsSQL,
	"progressSQL":          progressSQL,
	"promoteSQL":           promoteSQL,
	"prunePipelinesSQL":    prunePipelinesSQL,
	"prunePodsSQL":         prunePodsSQL,
	"pruneSubmissionsSQL":  pruneSubmissionsSQL,
	"putRoleSQL":           putRoleSQL,
	"readSubmissionSQL":    readSubmissionSQL,
	"recountSQL":           recountSQL,
	"recoverPageSQL":       recoverPageSQL,
	"registerSQL":          registerSQL,
	"rejoinSQL":            rejoinSQL,
	"reopenSQL":            reopenSQL,
	"reserveKeySQL":        reserveKeySQL,
	"reserveKeysSQL":       reserveKeysSQL,
	"reserveSubmissionSQL": reserveSubmissionSQL,
	"retryJobsSQL":         retryJobsSQL,
	"retryStateSQL":        retryStateSQL,
	"revokeDeferralSQL":    revokeDeferralSQL,
	"revokePartsSQL":       revokePartsSQL,
	"revokeRoleSQL":        revokeRoleSQL,
	"roleGrantsSQL":        roleGrantsSQL,
	"rolesOfSQL":           rolesOfSQL,
	"rolesSQL":             rolesSQL,
	"runningSQL":           runningSQL,
	"runsSQL":              runsSQL,
	"searchEventsSQL":      searchEventsSQL,
	"serverSQL":            serverSQL,
	"setGateSQL":           setGateSQL,
	"setLaneSQL":           setLaneSQL,
	"settledSQL":           settledSQL,
	"settleSlotsSQL":       settleSlotsSQL,
	"shortWaitSQL":         shortWaitSQL,
	"slotsInUseSQL":        slotsInUseSQL,
	"spineSQL":             spineSQL,
	"staleResultSQL":       staleResultSQL,
	"strandedSQL":          strandedSQL,
	"sweepsDueSQL":         sweepsDueSQL,
	"sweptSQL":             sweptSQL,
	"tablesSQL":            tablesSQL,
	"tellHandlerSQL":       tellHandlerSQL,
	"tokenSQL":             tokenSQL,
	"tracesOfFanOutSQL":    tracesOfFanOutSQL,
	"undeferSQL":           undeferSQL,
	"voidSlotsSQL":         voidSlotsSQL,
	"waitingInLaneSQL":     waitingInLaneSQL,
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
