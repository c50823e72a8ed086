package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/store/view"
)

// Rows written by earlier versions may contain arbitrary names, and anyone who can submit jobs can choose the kinds.
func TestDoctorCommandQuoting(t *testing.T) {
	is := is.New(t)
	const name, word = "x; touch pwned $(id) '", `'x; touch pwned $(id) '\'''`
	none := 0
	d := &examination{now: time.Now()}
	d.kinds([]view.WaitingWork{{Kind: name}})
	said := []string{d.findings[0].Do}
	for _, g := range []view.LaneState{{Name: name, Enabled: true, Drained: true}, {Name: name}, {Name: name, Enabled: true, Slots: &none}, {Name: name, Enabled: true, SlotsPerPod: &none}} {
		_, do := closedBy(g)
		said = append(said, do)
	}
	for _, s := range []view.ScheduleHealth{{Name: name, Error: "e", Placed: true}, {Name: name, Lane: name}, {Name: name, Placed: true}} {
		_, do := scheduleIll(s)
		said = append(said, do)
	}
	for _, do := range said {
		is.True(strings.Contains(do, word))
		is.True(!strings.Contains(strings.ReplaceAll(do, word, ""), "touch")) // the name never appears unquoted
	}
	_, do := holderText(view.Holder{What: "prepared", ID: "a'; drop table jobs; --"}, time.Now())
	is.True(strings.Contains(do, `'a''; drop table jobs; --'`))
}

func TestDoctorFullNotifyQueue(t *testing.T) {
	is := is.New(t)
	for used, want := range map[float64][]Health{0.1: nil, 0.3: {Warning}, 0.9: {Failing}} {
		d := &examination{server: view.Server{NotifyQueue: used}}
		d.notifications()
		var found []Health
		for _, f := range d.findings {
			found = append(found, f.Status)
		}
		is.Equal(found, want)
	}
}

// A test in internal/cli checks how the command prints these findings.
func TestFindingsHaveARemedy(t *testing.T) {
	is := is.New(t)
	limit, oldest := 0, time.Now().Add(-3*time.Hour)
	d := &examination{now: time.Now(), Thresholds: Thresholds{Overdue: 5 * time.Minute, Transaction: 5 * time.Minute}}
	d.find("server", Healthy, "PostgreSQL 17.5, primary", "")
	since := time.Now().Add(-12 * time.Minute)
	says, do := holderText(view.Holder{What: "session", ID: "4711", User: "app", Database: "shop", Application: "psql",
		State: "idle in transaction", Transactions: 81234, Since: &since}, since.Add(12*time.Minute))
	d.find("horizon", Warning, says, do)
	d.kinds([]view.WaitingWork{{Lane: "default", Kind: "report", Waiting: 12, Oldest: &oldest}})
	d.lane(view.LaneState{Name: "slow", Enabled: true, Slots: &limit}, waits{jobs: 3})
	text, err := os.ReadFile(filepath.Join("testdata", "findings.json"))
	is.NoErr(err)
	var want []Finding
	is.NoErr(json.Unmarshal(text, &want))
	is.Equal(d.findings, want)
}

func TestFindingHidesConnectionDetails(t *testing.T) {
	is := is.New(t)
	denied := &pgconn.PgError{Severity: "ERROR", Code: "42501", Message: "permission denied for table live"}
	is.True(strings.Contains(reason(fmt.Errorf("count waiting jobs: %w", denied)), "permission denied for table live"))
	_, err := pgconn.Connect(t.Context(), "postgres://app@127.0.0.1:1/shop") // the connection is refused
	_, refused := errors.AsType[*pgconn.ConnectError](err)
	is.True(refused)
	is.Equal(reason(fmt.Errorf("count what waits: %w", err)), "the database did not respond in time")
	is.Equal(reason(errors.Join(err, denied)), "the database did not respond in time") // as if the server had rejected the connection
}

// Anyone who can submit jobs can choose their kinds. Findings for unknown kinds must not crowd out those for kinds that the fleet is known
// to handle.
func TestManyUnknownKindFindings(t *testing.T) {
	is := is.New(t)
	d := &examination{now: time.Now()}
	oldest := d.now.Add(-time.Hour)
	var work []view.WaitingWork
	for i := range 150 {
		work = append(work, view.WaitingWork{Lane: "default", Kind: fmt.Sprintf("a%03d", i), Waiting: 100 + i%3, Oldest: &oldest})
	}
	work = append(work, view.WaitingWork{Lane: "default", Kind: "report", Waiting: 1, Known: true}, view.WaitingWork{Lane: "mail", Kind: "a000", Waiting: 1000})
	d.kinds(work)
	is.Equal(len(d.findings), mostKinds+1)
	is.True(strings.Contains(d.findings[0].Says, `"report": 1 job waits`)) // the finding for a kind that the fleet knows comes first
	is.True(strings.Contains(d.findings[1].Says, `"a000": 1100 jobs wait`) || strings.Contains(d.findings[1].Says, `"a000": 1,100 jobs wait`))
	is.True(strings.Contains(d.findings[mostKinds].Says, "146 other kinds, such as"))
	is.True(strings.Contains(d.findings[mostKinds].Says, "the oldest due for 1h00m"))
}
