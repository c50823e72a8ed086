package view

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
	"keysInUseSQL":       keysInUseSQL,
	"uselessLimitsSQL":   uselessLimitsSQL,
	"madeSQL":            madeSQL,
	"unknownWorkSQL":     unknownWorkSQL,
	"lookedPipelinesSQL": lookedPipelinesSQL,
	"boardApprovalsSQL":  boardApprovalsSQL,
	"retryingSQL":        retryingSQL,
	"needsSecondSQL":     needsSecondSQL,
	"boardDueSQL":        boardDueSQL,
	"boardLanesSQL":      boardLanesSQL,
	"boardParkedSQL":     boardParkedSQL,
	"boardPodsSQL":       boardPodsSQL,
	"boardRunningSQL":    boardRunningSQL,
	"boardSlotsSQL":      boardSlotsSQL,
	"branchesSQL":        branchesSQL,
	"branchJobsSQL":      branchJobsSQL,
	"branchPageSQL":      branchPageSQL,
	"branchStatesSQL":    branchStatesSQL,
	"clockSQL":           clockSQL,
	"closuresSQL":        closuresSQL,
	"currentJobsSQL":     currentJobsSQL,
	"currentRunSQL":      currentRunSQL,
	"endedJobsSQL":       endedJobsSQL,
	"enqueuedSQL":        enqueuedSQL,
	"errorIDsSQL":        errorIDsSQL,
	"exportEventsSQL":    exportEventsSQL,
	"exportJobsSQL":      exportJobsSQL,
	"namedRunSQL":        namedRunSQL,
	"failuresSQL":        failuresSQL,
	"ownFailuresSQL":     ownFailuresSQL,
	"feedLagSQL":         feedLagSQL,
	"feedNowSQL":         feedNowSQL,
	"feedPageSQL":        feedPageSQL,
	"feedSQL":            feedSQL,
	"fleetSQL":           fleetSQL,
	"foreignLaneSQL":     foreignLaneSQL,
	"queueStateAtSQL":    queueStateAtSQL,
	"queueStateSQL":      queueStateSQL,
	"horizonSQL":         horizonSQL,
	"jobEventsSQL":       jobEventsSQL,
	"jobsOfPipelineSQL":  jobsOfPipelineSQL,
	"jobsOfSQL":          jobsOfSQL,
	"jobSQL":             jobSQL,
	"jobsSQL":            jobsSQL,
	"kindJobsSQL":        kindJobsSQL,
	"kindPodsSQL":        kindPodsSQL,
	"laneStatesSQL":      laneStatesSQL,
	"laneUseSQL":         laneUseSQL,
	"lockHoldersSQL":     lockHoldersSQL,
	"lookedSQL":          lookedSQL,
	"missingDaysSQL":     missingDaysSQL,
	"defaultRowsSQL":     defaultRowsSQL,
	"futureSQL":          futureSQL,
	"locksSQL":           locksSQL,
	"newsSQL":            newsSQL,
	"notesSQL":           notesSQL,
	"openIDsSQL":         openIDsSQL,
	"openJobsSQL":        openJobsSQL,
	"overSQL":            overSQL,
	"ownerSQL":           ownerSQL,
	"unidentifiedSQL":    unidentifiedSQL,
	"weakTriggersSQL":    weakTriggersSQL,
	"ownJobsSQL":         ownJobsSQL,
	"ownLookedSQL":       ownLookedSQL,
	"ownPipelinesSQL":    ownPipelinesSQL,
	"pipelineEventsSQL":  pipelineEventsSQL,
	"pipelineNewsSQL":    pipelineNewsSQL,
	"pipelineOfSQL":      pipelineOfSQL,
	"pipelineSQL":        pipelineSQL,
	"pipelinesSQL":       pipelinesSQL,
	"podHealthSQL":       podHealthSQL,
	"podsSQL":            podsSQL,
	"rareCountSQL":       rareCountSQL,
	"rarePipelinesSQL":   rarePipelinesSQL,
	"scheduleHealthSQL":  scheduleHealthSQL,
	"searchEventsSQL":    searchEventsSQL,
	"searchFewSQL":       searchFewSQL,
	"searchJobsSQL":      searchJobsSQL,
	"searchOwnJobsSQL":   searchOwnJobsSQL,
	"serverSQL":          serverSQL,
	"collationSQL":       collationSQL,
	"slotsInUseSQL":      slotsInUseSQL,
	"spineSQL":           spineSQL,
	"standingSQL":        standingSQL,
	"statsSQL":           statsSQL,
	"strongOwnerSQL":     strongOwnerSQL,
	"tablesSQL":          tablesSQL,
	"tracesOfFanOutSQL":  tracesOfFanOutSQL,
	"waitingWorkSQL":     waitingWorkSQL,
}

// hot lists the statements whose plans are stored in the repository, so that changes show up in reviews.
var hot = map[string]string{
	"over": overSQL, "branches": branchesSQL, "board_lanes": boardLanesSQL, "board_due": boardDueSQL, "board_parked": boardParkedSQL,
	"standing": standingSQL, "own_jobs": ownJobsSQL, "jobs": jobsSQL, "open_jobs": openJobsSQL, "pipelines": pipelinesSQL,
	"own_pipelines": ownPipelinesSQL, "fleet": fleetSQL, "traces_of_fan_out": tracesOfFanOutSQL, "news": newsSQL, "feed_page": feedPageSQL,
	"notes": notesSQL, "jobs_of_pipeline": jobsOfPipelineSQL, "looked": lookedSQL, "looked_pipelines": lookedPipelinesSQL,
	"own_looked": ownLookedSQL, "ended_jobs": endedJobsSQL, "rare_count": rareCountSQL, "rare_pipelines": rarePipelinesSQL,
	"current_run": currentRunSQL, "named_run": namedRunSQL, "stats": statsSQL, "failures": failuresSQL, "own_failures": ownFailuresSQL, "closures": closuresSQL,
	"error_ids":  errorIDsSQL,
	"search_few": searchFewSQL, "search_jobs": searchJobsSQL, "search_own_jobs": searchOwnJobsSQL,
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
