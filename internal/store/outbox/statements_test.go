package outbox

import (
	"testing"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/plantest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// statements lists all SQL statements of the package. TestEveryStatementIsListed checks that none is missing.
var statements = map[string]string{
	"againSQL":         againSQL,
	"anyDueSQL":        anyDueSQL,
	"cancelsSQL":       cancelsSQL,
	"databaseSQL":      databaseSQL,
	"deliveredSQL":     deliveredSQL,
	"doneWithSQL":      doneWithSQL,
	"endedHereSQL":     endedHereSQL,
	"holdRunSQL":       holdRunSQL,
	"holdsSQL":         holdsSQL,
	"lanesSQL":         lanesSQL,
	"namesSQL":         namesSQL,
	"openLanesSQL":     openLanesSQL,
	"roomSQL":          roomSQL,
	"startedBeforeSQL": startedBeforeSQL,
	"startedSQL":       startedSQL,
	"takeSQL":          takeSQL,
	"unstartedSQL":     unstartedSQL,
}

// hot lists the statements that a forwarder runs for each job or poll. Their plans are stored in the repository, so that changes show up in
// reviews.
var hot = map[string]string{
	"any_due": anyDueSQL, "open_lanes": openLanesSQL, "room": roomSQL, "take": takeSQL, "unstarted": unstartedSQL,
	"started_before": startedBeforeSQL, "started": startedSQL, "cancels": cancelsSQL, "hold_run": holdRunSQL,
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
