package doctor

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"
	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/store/view"
)

// Rows of earlier versions may have any name, and whoever may submit chose the kinds.
func TestWhatADoctorSaysToDoIsSafeToPaste(t *testing.T) {
	is := is.New(t)
	const name, word = "x; touch pwned $(id) '", `'x; touch pwned $(id) '\'''`
	none := 0
	d := &doctor{}
	d.kinds([]view.WaitingWork{{Kind: name}})
	said := []string{d.findings[0].Do}
	for _, g := range []view.LaneGate{{Name: name, Enabled: true, Drained: true}, {Name: name}, {Name: name, Enabled: true, Slots: &none}, {Name: name, Enabled: true, SlotsPerPod: &none}} {
		_, do := closedBy(g)
		said = append(said, do)
	}
	for _, s := range []view.ScheduleHealth{{Name: name, Error: "e", Placed: true}, {Name: name, Lane: name}, {Name: name, Placed: true}} {
		_, do := scheduleIll(s)
		said = append(said, do)
	}
	for _, do := range said {
		is.True(strings.Contains(do, word))
		is.True(!strings.Contains(strings.ReplaceAll(do, word, ""), "touch")) // nowhere unquoted
	}
	_, do := holderText(view.Holder{What: "prepared", ID: "a'; drop table jobs; --"}, time.Now())
	is.True(strings.Contains(do, `'a''; drop table jobs; --'`))
}

func TestFindingsAreReadByPeople(t *testing.T) {
	is := is.New(t)
	limit, oldest := 0, time.Now().Add(-3*time.Hour)
	d := &doctor{overdue: 5 * time.Minute, oldest: 5 * time.Minute}
	d.find("server", healthy, "PostgreSQL 17.5, a primary", "")
	since := time.Now().Add(-12 * time.Minute)
	says, do := holderText(view.Holder{What: "session", ID: "4711", User: "app", Database: "shop", Application: "psql",
		State: "idle in transaction", Transactions: 81234, Since: &since}, since.Add(12*time.Minute))
	d.find("horizon", warning, says, do)
	d.kinds([]view.WaitingWork{{Lane: "default", Kind: "report", Waiting: 12, Oldest: &oldest}})
	d.lane(view.LaneGate{Name: "slow", Enabled: true, Slots: &limit}, waits{jobs: 3}, time.Now())
	var printed bytes.Buffer
	c := &cobra.Command{}
	c.SetOut(&printed)
	is.NoErr(printFindings(c, d.findings))
	want, err := os.ReadFile(filepath.Join("testdata", "doctor.txt"))
	is.NoErr(err)
	is.Equal(printed.String(), string(want))
}
