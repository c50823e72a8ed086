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
	"behindSQL":            behindSQL,
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
	"createScheduleSQL":    createScheduleSQL,
	"dayHasRowsSQL":        dayHasRowsSQL,
	"daysSQL":              daysSQL,
	"deletableSQL":         deletableSQL,
	"deleteEndsSQL":        deleteEndsSQL,
	"deleteLaneSQL":        deleteLaneSQL,
	"deleteRoleSQL":        deleteRoleSQL,
	"deleteScheduleSQL":    deleteScheduleSQL,
	"doneStateSQL":         doneStateSQL,
	"drainLaneSQL":         drainLaneSQL,
	"drainPodsSQL":         drainPodsSQL,
	"dropDaySQL":           dropDaySQL,
	"dropKindsSQL":         dropKindsSQL,
	"emitManySQL":          emitManySQL,
	"emitSQL":              emitSQL,
	"endBranchesSQL":       endBranchesSQL,
	"endedBranchesSQL":     endedBranchesSQL,
	"endedJobsSQL":         endedJobsSQL,
	"endSQL":               endSQL,
	"endStraySQL":          endStraySQL,
	"endTurnSQL":           endTurnSQL,
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
	"forgetEndsSQL":        forgetEndsSQL,
	"forgetJobsSQL":        forgetJobsSQL,
	"forgetPageSQL":        forgetPageSQL,
	"forgiveSQL":           forgiveSQL,
	"freeLooseSQL":         freeLooseSQL,
	"gateRowSQL":           gateRowSQL,
	"gateSQL":              gateSQL,
	"giveKindsSQL":         giveKindsSQL,
	"grantRoleSQL":         grantRoleSQL,
	"guestPoliciesSQL":     guestPoliciesSQL,
	"guestSQL":             guestSQL,
	"handBackSQL":          handBackSQL,
	"hasLeadSQL":           hasLeadSQL,
	"heartbeatSQL":         heartbeatSQL,
	"heldSQL":              heldSQL,
	"holdSQL":              holdSQL,
	"horizonSQL":           horizonSQL,
	"idBlocksSQL":          idBlocksSQL,
	"inheritKeySQL":        inheritKeySQL,
	"inheritKeysSQL":       inheritKeysSQL,
	"insertFiresSQL":       insertFiresSQL,
	"jobEventsSQL":         jobEventsSQL,
	"jobExistsSQL":         jobExistsSQL,
	"jobsOfSQL":            jobsOfSQL,
	"jobSQL":               jobSQL,
	"jobsSQL":              jobsSQL,
	"keepSQL":              keepSQL,
	"keptEndsSQL":          keptEndsSQL,
	"keysOfSQL":            keysOfSQL,
	"laneGatesSQL":         laneGatesSQL,
	"laneJobsSQL":          laneJobsSQL,
	"laneUseSQL":           laneUseSQL,
	"lastFiresSQL":         lastFiresSQL,
	"leaveSQL":             leaveSQL,
	"lockDeferralSQL":      lockDeferralSQL,
	"lockFanOutSQL":        lockFanOutSQL,
	"lockFreeJobsSQL":      lockFreeJobsSQL,
	"lockGateSQL":          lockGateSQL,
	"lockJobsSQL":          lockJobsSQL,
	"lockKeySQL":           lockKeySQL,
	"lockKeysSQL":          lockKeysSQL,
	"lockKindsSQL":         lockKindsSQL,
	"lockLaneSQL":          lockLaneSQL,
	"lockLanesSQL":         lockLanesSQL,
	"lockLiveSQL":          lockLiveSQL,
	"lockPodsSQL":          lockPodsSQL,
	"lockScheduleSQL":      lockScheduleSQL,
	"looseKeysSQL":         looseKeysSQL,
	"marksSQL":             marksSQL,
	"matchEndedSQL":        matchEndedSQL,
	"matchOpenSQL":         matchOpenSQL,
	"mendGrantsSQL":        mendGrantsSQL,
	"missingDaysSQL":       missingDaysSQL,
	"moveKindsSQL":         moveKindsSQL,
	"moveLiveSQL":          moveLiveSQL,
	"moveParkedSQL":        moveParkedSQL,
	"nameSubmissionSQL":    nameSubmissionSQL,
	"newArgsSQL":           newArgsSQL,
	"newsSQL":              newsSQL,
	"nextFireSQL":          nextFireSQL,
	"niceLiveSQL":          niceLiveSQL,
	"niceParkedSQL":        niceParkedSQL,
	"notesSQL":             notesSQL,
	"noteThinnedSQL":       noteThinnedSQL,
	"notifySettingsSQL":    notifySettingsSQL,
	"notifySQL":            notifySQL,
	"offBalanceSQL":        offBalanceSQL,
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
	"pauseScheduleSQL":     pauseScheduleSQL,
	"pinSQL":               pinSQL,
	"pipelineEventsSQL":    pipelineEventsSQL,
	"pipelineNewsSQL":      pipelineNewsSQL,
	"pipelineSQL":          pipelineSQL,
	"pipelinesSQL":         pipelinesSQL,
	"planScheduleSQL":      planScheduleSQL,
	"plansSQL":             plansSQL,
	"podHealthSQL":         podHealthSQL,
	"podsSQL":              podsSQL,
	"progressSQL":          progressSQL,
	"promoteSQL":           promoteSQL,
	"pruneFiresSQL":        pruneFiresSQL,
	"prunePipelinesSQL":    prunePipelinesSQL,
	"prunePodsSQL":         prunePodsSQL,
	"pruneSubmissionsSQL":  pruneSubmissionsSQL,
	"putRoleSQL":           putRoleSQL,
	"rareCountSQL":         rareCountSQL,
	"rarePipelinesSQL":     rarePipelinesSQL,
	"readSubmissionSQL":    readSubmissionSQL,
	"recountSQL":           recountSQL,
	"recoverPageSQL":       recoverPageSQL,
	"registerSQL":          registerSQL,
	"rejoinSQL":            rejoinSQL,
	"removeScheduleSQL":    removeScheduleSQL,
	"reopenSQL":            reopenSQL,
	"reserveKeySQL":        reserveKeySQL,
	"reserveKeysSQL":       reserveKeysSQL,
	"reserveSubmissionSQL": reserveSubmissionSQL,
	"retentionsSQL":        retentionsSQL,
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
	"scheduleActiveSQL":    scheduleActiveSQL,
	"scheduleEventsSQL":    scheduleEventsSQL,
	"scheduleHealthSQL":    scheduleHealthSQL,
	"schedulesSQL":         schedulesSQL,
	"searchEventsSQL":      searchEventsSQL,
	"serverSQL":            serverSQL,
	"setGateSQL":           setGateSQL,
	"setLaneSQL":           setLaneSQL,
	"setScheduleSQL":       setScheduleSQL,
	"settledSQL":           settledSQL,
	"settleFiresSQL":       settleFiresSQL,
	"settleSlotsSQL":       settleSlotsSQL,
	"shortWaitSQL":         shortWaitSQL,
	"slotsInUseSQL":        slotsInUseSQL,
	"spineSQL":             spineSQL,
	"staleResultSQL":       staleResultSQL,
	"standingSQL":          standingSQL,
	"stillEndedSQL":        stillEndedSQL,
	"strandedSQL":          strandedSQL,
	"strayRunsSQL":         strayRunsSQL,
	"sweepsDueSQL":         sweepsDueSQL,
	"sweptSQL":             sweptSQL,
	"tablesSQL":            tablesSQL,
	"takeLeadSQL":          takeLeadSQL,
	"takeScheduleSQL":      takeScheduleSQL,
	"scheduleWrongSQL":     scheduleWrongSQL,
	"shortFireSQL":         shortFireSQL,
	"takeTurnSQL":          takeTurnSQL,
	"tellHandlerSQL":       tellHandlerSQL,
	"thinnedSQL":           thinnedSQL,
	"tokenSQL":             tokenSQL,
	"tracesOfFanOutSQL":    tracesOfFanOutSQL,
	"turnsSQL":             turnsSQL,
	"undeferSQL":           undeferSQL,
	"voidSlotsSQL":         voidSlotsSQL,
	"waitingInLaneSQL":     waitingInLaneSQL,
	"waitingSinceSQL":      waitingSinceSQL,
	"waitingSQL":           waitingSQL,
	"waitingWorkSQL":       waitingWorkSQL,
	"whereaboutsSQL":       whereaboutsSQL,
	"wrongGrantsSQL":       wrongGrantsSQL,
	"jobsOfPipelineSQL":    jobsOfPipelineSQL,
	"lookedSQL":            lookedSQL,
	"ownLookedSQL":         ownLookedSQL,
	"pipelineOfSQL":        pipelineOfSQL,
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
