package admin

import (
	"testing"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/plantest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// statements lists all statements in the package. TestEveryStatementIsListed checks that the list is complete. There is one statement per
// line, so that concurrent changes rarely conflict.
var statements = map[string]string{
	"holdLaneSQL":          holdLaneSQL,
	"makeLanesSQL":         makeLanesSQL,
	"followSettingsSQL":    followSettingsSQL,
	"followLimitsSQL":      followLimitsSQL,
	"idleLanesSQL":         idleLanesSQL,
	"ownLimitsSQL":         ownLimitsSQL,
	"openLimitSQL":         openLimitSQL,
	"setLimitSQL":          setLimitSQL,
	"deleteLimitSQL":       deleteLimitSQL,
	"limitsSQL":            limitsSQL,
	"holdLaneOfKeySQL":     holdLaneOfKeySQL,
	"holdLanePageSQL":      holdLanePageSQL,
	"holdKindOfKeySQL":     holdKindOfKeySQL,
	"holdKindPageSQL":      holdKindPageSQL,
	"waitingKeysSQL":       waitingKeysSQL,
	"deleteRetentionSQL":   deleteRetentionSQL,
	"setRetentionSQL":      setRetentionSQL,
	"linesSQL":             linesSQL,
	"lockRetentionSQL":     lockRetentionSQL,
	"allRetentionsSQL":     allRetentionsSQL,
	"approveSQL":           approveSQL,
	"askClaimSQL":          askClaimSQL,
	"asksApprovalSQL":      asksApprovalSQL,
	"auditSQL":             auditSQL,
	"auditTrailSQL":        auditTrailSQL,
	"beatsSQL":             beatsSQL,
	"bootKindsSQL":         bootKindsSQL,
	"declareKindsSQL":      declareKindsSQL,
	"keptKindsSQL":         keptKindsSQL,
	"bootLaneSQL":          bootLaneSQL,
	"keepsDefaultSQL":      keepsDefaultSQL,
	"bootDefaultSQL":       bootDefaultSQL,
	"hasLaneSQL":           hasLaneSQL,
	"cancelLiveSQL":        cancelLiveSQL,
	"cancelManySQL":        cancelManySQL,
	"cancelParkedSQL":      cancelParkedSQL,
	"claimAnswerSQL":       claimAnswerSQL,
	"changePlansSQL":       changePlansSQL,
	"checkTokenSQL":        checkTokenSQL,
	"completeSQL":          completeSQL,
	"engineServedSQL":      engineServedSQL,
	"lockMoveSQL":          lockMoveSQL,
	"movingLanesSQL":       movingLanesSQL,
	"noteHeardSQL":         noteHeardSQL,
	"switchEngineSQL":      switchEngineSQL,
	"countAuditSQL":        countAuditSQL,
	"countMovesSQL":        countMovesSQL,
	"createLaneSQL":        createLaneSQL,
	"createScheduleSQL":    createScheduleSQL,
	"deletableSQL":         deletableSQL,
	"deleteEndsSQL":        deleteEndsSQL,
	"deleteLaneSQL":        deleteLaneSQL,
	"deleteRoleSQL":        deleteRoleSQL,
	"deleteScheduleSQL":    deleteScheduleSQL,
	"doneStateSQL":         doneStateSQL,
	"drainLaneSQL":         drainLaneSQL,
	"drainPodsSQL":         drainPodsSQL,
	"dropKindsSQL":         dropKindsSQL,
	"endedBranchesSQL":     endedBranchesSQL,
	"eraseAuditSQL":        eraseAuditSQL,
	"erasePlansSQL":        erasePlansSQL,
	"eraseSQL":             eraseSQL,
	"descendantsSQL":       descendantsSQL,
	"subjectPageSQL":       subjectPageSQL,
	"enginesSQL":           enginesSQL,
	"schedulesOfSQL":       schedulesOfSQL,
	"expireSQL":            expireSQL,
	"removeRequestSQL":     removeRequestSQL,
	"queueStateRowSQL":     queueStateRowSQL,
	"giveKindsSQL":         giveKindsSQL,
	"grantRoleSQL":         grantRoleSQL,
	"insertOccurrencesSQL": insertOccurrencesSQL,
	"jobExistsSQL":         jobExistsSQL,
	"keysOfSQL":            keysOfSQL,
	"kindAttemptsSQL":      kindAttemptsSQL,
	"laneJobsSQL":          laneJobsSQL,
	"lastOccurrencesSQL":   lastOccurrencesSQL,
	"lockQueueStateSQL":    lockQueueStateSQL,
	"lockKindsSQL":         lockKindsSQL,
	"lockLaneSQL":          lockLaneSQL,
	"lockLiveSQL":          lockLiveSQL,
	"lockParkedSQL":        lockParkedSQL,
	"openEpochSQL":         openEpochSQL,
	"lockPodsSQL":          lockPodsSQL,
	"lockScheduleSQL":      lockScheduleSQL,
	"matchEndedSQL":        matchEndedSQL,
	"matchOpenSQL":         matchOpenSQL,
	"moveKindsSQL":         moveKindsSQL,
	"moveLiveSQL":          moveLiveSQL,
	"moveParkedSQL":        moveParkedSQL,
	"newArgsSQL":           newArgsSQL,
	"nextFireSQL":          nextFireSQL,
	"niceLiveSQL":          niceLiveSQL,
	"nextStepSQL":          nextStepSQL,
	"niceRunningSQL":       niceRunningSQL,
	"niceParkedSQL":        niceParkedSQL,
	"openBranchesSQL":      openBranchesSQL,
	"openCountSQL":         openCountSQL,
	"openOfPipelineSQL":    openOfPipelineSQL,
	"lockApprovalSQL":      lockApprovalSQL,
	"operatorEventSQL":     operatorEventSQL,
	"partsSQL":             partsSQL,
	"pauseScheduleSQL":     pauseScheduleSQL,
	"planSchedulesSQL":     planSchedulesSQL,
	"plansSQL":             plansSQL,
	"putRoleSQL":           putRoleSQL,
	"rejoinSQL":            rejoinSQL,
	"removeScheduleSQL":    removeScheduleSQL,
	"reopenSQL":            reopenSQL,
	"retryJobsSQL":         retryJobsSQL,
	"retryStateSQL":        retryStateSQL,
	"revokeRoleSQL":        revokeRoleSQL,
	"roleGrantsSQL":        roleGrantsSQL,
	"rolesOfSQL":           rolesOfSQL,
	"rolesSQL":             rolesSQL,
	"runningSQL":           runningSQL,
	"runsSQL":              runsSQL,
	"schedulesActiveSQL":   schedulesActiveSQL,
	"scheduleEventsSQL":    scheduleEventsSQL,
	"schedulesSQL":         schedulesSQL,
	"scheduleWrongSQL":     scheduleWrongSQL,
	"setQueueStateSQL":     setQueueStateSQL,
	"setLaneSQL":           setLaneSQL,
	"setScheduleSQL":       setScheduleSQL,
	"settleOccurrencesSQL": settleOccurrencesSQL,
	"shortFireSQL":         shortFireSQL,
	"strandedSQL":          strandedSQL,
	"takeSchedulesSQL":     takeSchedulesSQL,
	"notifyHandlerSQL":     notifyHandlerSQL,
	"undeferSQL":           undeferSQL,
	"waitingInLaneSQL":     waitingInLaneSQL,
}

// hot lists the statements whose plans are stored in the repository, so that changes to them show up in reviews.
var hot = map[string]string{
	"cancel_live": cancelLiveSQL, "cancel_many": cancelManySQL, "open_branches": openBranchesSQL, "open_of_pipeline": openOfPipelineSQL,
	"complete": completeSQL, "approve": approveSQL, "expire": expireSQL, "match_open": matchOpenSQL, "match_ended": matchEndedSQL,
	"move_live": moveLiveSQL, "move_parked": moveParkedSQL, "nice_live": niceLiveSQL, "nice_parked": niceParkedSQL,
	"retry_jobs": retryJobsSQL, "retry_state": retryStateSQL, "take_schedules": takeSchedulesSQL, "schedules_active": schedulesActiveSQL,
	"next_fire": nextFireSQL, "plan_schedules": planSchedulesSQL, "insert_occurrences": insertOccurrencesSQL, "settle_occurrences": settleOccurrencesSQL,
}

func TestEveryStatementIsListed(t *testing.T) { plantest.Listed(t, statements) }

func TestEveryStatementPrepares(t *testing.T) { plantest.Prepare(t, pgtest.URL(t), statements) }

func TestRepeatableStatementsOnlyRead(t *testing.T) {
	t.Parallel()
	plantest.OnlyRead(t, pgtest.Pool(t), statements, store.ReadsOnly)
}

func TestHotStatementsKeepTheirPlans(t *testing.T) {
	t.Parallel()
	plantest.Keep(t, plantest.Pinned(t, plantest.Open(t, store.New).Pool()), hot)
}
