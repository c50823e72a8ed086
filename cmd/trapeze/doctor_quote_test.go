package main

import (
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/store"
)

// Rows of earlier versions may have any name, and whoever may submit chose the kinds.
func TestWhatADoctorSaysToDoIsSafeToPaste(t *testing.T) {
	is := is.New(t)
	const name, word = "x; touch pwned $(id) '", `'x; touch pwned $(id) '\'''`
	none := 0
	d := &doctor{}
	d.kinds([]store.WaitingWork{{Kind: name}})
	said := []string{d.findings[0].Do}
	for _, g := range []store.LaneGate{{Name: name, Enabled: true, Drained: true}, {Name: name}, {Name: name, Enabled: true, Slots: &none}, {Name: name, Enabled: true, SlotsPerPod: &none}} {
		_, do := closedBy(g)
		said = append(said, do)
	}
	for _, s := range []store.ScheduleHealth{{Name: name, Error: "e", Placed: true}, {Name: name, Lane: name}, {Name: name, Placed: true}} {
		_, do := scheduleIll(s)
		said = append(said, do)
	}
	for _, do := range said {
		is.True(strings.Contains(do, word))
		is.True(!strings.Contains(strings.ReplaceAll(do, word, ""), "touch")) // nowhere unquoted
	}
	_, do := holderText(store.Holder{What: "prepared", ID: "a'; drop table jobs; --"}, time.Now())
	is.True(strings.Contains(do, `'a''; drop table jobs; --'`))
}
