package model

import (
	"testing"
	"time"
)

// one is a job of the first subject.
var one = Job{Subject: 1}

// scenarios lists what the short run explores. In the scenarios without the net, nothing fails: the fast path alone must suffice.
var scenarios = []Scenario{
	{Name: "three jobs of one subject", Jobs: []Job{one, one, one}},
	{Name: "two subjects in batches", Jobs: []Job{one, {Subject: 2}, one}, Batch: true},
	{Name: "a caller's transaction", Jobs: []Job{one, {Subject: 1, InTx: true}, {Subject: 2, InTx: true}}},
	{Name: "a next step of the subject", Jobs: []Job{{Subject: 1, Next: 1}, {Subject: 1, Step: true}, {Subject: 1, Priority: 1}}},
	{Name: "a next step of another subject", Jobs: []Job{{Subject: 1, Next: 1}, {Subject: 2, Step: true}, {Subject: 2}}},
	{Name: "crossing hand-offs", Jobs: []Job{{Subject: 1, Next: 2}, {Subject: 2, Next: 3}, {Subject: 2, Step: true}, {Subject: 1, Step: true}}, Batch: true},
	{Name: "a hand-off against a batch", Jobs: []Job{{Subject: 2, Next: 1}, {Subject: 1, Step: true}, one, {Subject: 2}}, Batch: true},
	{Name: "a next step in a closed lane", Closed: true, Jobs: []Job{{Subject: 1, Next: 1}, {Subject: 1, Step: true, Lane: 1, Priority: 1}, one}},
	{Name: "a job of a closed lane", Closed: true, Commands: []Op{Lane}, Ops: 1, Jobs: []Job{{Subject: 1, Lane: 1}, one}},
	{Name: "times, approvals and retries", Jobs: []Job{{Subject: 1, Wait: scheduled}, {Subject: 1, Wait: approval}, {Subject: 1, Retries: true}}},
	{Name: "cancel", Jobs: []Job{one, one, one}, Commands: []Op{Cancel}, Ops: 1},
	{Name: "priority", Jobs: []Job{one, one, one}, Commands: []Op{Priority}, Ops: 1},
	{Name: "commands", Jobs: []Job{one, {Subject: 1, Wait: scheduled}}, Commands: []Op{Cancel, Priority, HandBack, Again, Prune}, Ops: 2},
	{Name: "a move", Closed: true, Jobs: []Job{{Subject: 1, Lane: 1}, one}, Commands: []Op{Move}, Ops: 1},

	{Name: "a closing lane", Jobs: []Job{{Subject: 1, Lane: 1}, one}, Commands: []Op{Lane, Move, Priority}, Ops: 2, Net: true},
	{Name: "faults", Jobs: []Job{one, one}, Faults: []Fault{Crash, Lapse, LostReply, Abort}, Most: 2, Net: true},
	{Name: "faults in a pipeline", Jobs: []Job{{Subject: 1, Next: 1}, {Subject: 2, Step: true}, {Subject: 2}}, Faults: []Fault{Crash, Lapse, LostReply}, Most: 1, Net: true},
	{Name: "faults and commands", Jobs: []Job{one, one}, Commands: []Op{Cancel, Priority, HandBack, Again, Prune}, Ops: 1, Faults: []Fault{Crash, Lapse, LostReply}, Most: 1, Net: true},
	{Name: "faults in a caller's transaction", Jobs: []Job{one, {Subject: 1, InTx: true}}, Faults: []Fault{Crash, LostReply, Abort}, Most: 2, Net: true},
	{Name: "faults of times and retries", Jobs: []Job{{Subject: 1, Wait: scheduled}, {Subject: 1, Retries: true}}, Faults: []Fault{Crash, LostReply, Abort}, Most: 1, Net: true},
}

func TestScenarios(t *testing.T) {
	states, transitions := 0, 0
	for _, m := range scenarios {
		start := time.Now()
		r, err := m.Explore(3_000_000)
		t.Logf("%-32s %8d states %8d transitions %5.1fs %v", m.Name, r.States, r.Transitions, time.Since(start).Seconds(), err)
		if r.Error != "" {
			t.Errorf("%s: %s", m.Name, r.Error)
		}
		states, transitions = states+r.States, transitions+r.Transitions
	}
	t.Logf("%d states, %d transitions", states, transitions)
}

// Each planted error is found in a scenario.
func TestPlantedErrors(t *testing.T) {
	for _, c := range []struct {
		planted Error
		name    string
	}{
		{ForgottenAdmission, "ForgottenAdmission"},
		{NoGuard, "NoGuard"},
		{DeleteFirst, "DeleteFirst"},
		{NoSecondLook, "NoSecondLook"},
		{NoLookAfterParking, "NoLookAfterParking"},
		{NoLookAfterConflict, "NoLookAfterConflict"},
		{NoLookAfterChange, "NoLookAfterChange"},
		{NoLookAfterOpen, "NoLookAfterOpen"},
		{NoLookAfterUnknown, "NoLookAfterUnknown"},
		{CallerTakesGuard, "CallerTakesGuard"},
		{ReleaseFirst, "ReleaseFirst"},
		{BlindInsert, "BlindInsert"},
		{ReleaseFirst|BlindInsert, "ReleaseFirst+BlindInsert"},
		{StuckStep, "StuckStep"},
		{MoveLosesReason, "MoveLosesReason"},
		{CancelKeepsGuard, "CancelKeepsGuard"},
		{NoSwap, "NoSwap"},
	} {
		found := 0
		for _, m := range scenarios {
			m.Planted = c.planted
			r, err := m.Explore(3_000_000)
			if r.Error != "" {
				found++
				if found == 1 {
				t.Log(c.name, m.Name, r.States, err, "\n"+r.Error)
				}else {t.Log(c.name, m.Name, r.States, err) }
			}
		}
		if found == 0 {
			t.Error(c.name)
		}
	}
}
