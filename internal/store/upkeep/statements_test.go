package upkeep

import (
	"testing"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/plantest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// statements lists all SQL statements of the package. TestEveryStatementIsListed checks that none is missing. There is one statement per
// line, so that concurrent changes rarely conflict.
var statements = map[string]string{
	"addStatsSQL":         addStatsSQL,
	"addSumsSQL":          addSumsSQL,
	"awaitedSQL":          awaitedSQL,
	"behindSQL":           behindSQL,
	"dayHasRowsSQL":       dayHasRowsSQL,
	"daysSQL":             daysSQL,
	"dropDaySQL":          dropDaySQL,
	"dropInTurnSQL":       dropInTurnSQL,
	"endStraySQL":         endStraySQL,
	"endTaskSQL":          endTaskSQL,
	"forgetEndsSQL":       forgetEndsSQL,
	"forgetJobsSQL":       forgetJobsSQL,
	"forgetPageSQL":       forgetPageSQL,
	"freeLooseSQL":        freeLooseSQL,
	"keptEndsSQL":         keptEndsSQL,
	"lockFanOutSQL":       lockFanOutSQL,
	"lockFreeJobsSQL":     lockFreeJobsSQL,
	"lockJobsSQL":         lockJobsSQL,
	"lockLanesSQL":        lockLanesSQL,
	"looseKeysSQL":        looseKeysSQL,
	"mendGrantsSQL":       mendGrantsSQL,
	"createDaySQL":        createDaySQL,
	"missingDaysSQL":      missingDaysSQL,
	"noteThinnedSQL":      noteThinnedSQL,
	"overdueSQL":          overdueSQL,
	"pruneOccurrencesSQL": pruneOccurrencesSQL,
	"prunePipelinesSQL":   prunePipelinesSQL,
	"prunePodsSQL":        prunePodsSQL,
	"pruneStatsSQL":       pruneStatsSQL,
	"pruneSubmissionsSQL": pruneSubmissionsSQL,
	"recountSQL":          recountSQL,
	"retentionsSQL":       retentionsSQL,
	"stillEndedSQL":       stillEndedSQL,
	"strayRunsSQL":        strayRunsSQL,
	"takeOldStatsSQL":     takeOldStatsSQL,
	"beginTaskSQL":        beginTaskSQL,
	"thinnedSQL":          thinnedSQL,
	"taskRunsSQL":         taskRunsSQL,
	"waitingSinceSQL":     waitingSinceSQL,
	"wrongGrantsSQL":      wrongGrantsSQL,
}

// hot lists the statements whose plans are stored in the repository, so that changes show up in reviews.
var hot = map[string]string{
	"waiting_since": waitingSinceSQL, "prune_pipelines": prunePipelinesSQL, "overdue": overdueSQL,
	"take_old_stats": takeOldStatsSQL, "prune_stats": pruneStatsSQL,
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
