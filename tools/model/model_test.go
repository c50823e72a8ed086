package model

import (
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"
)

// one is a job of the first subject.
var one = Job{Subject: 1}

// scenarios lists the scenarios of the short run. In the scenarios without the net, nothing crashes: the fast path alone must suffice.
var scenarios = []Scenario{
	{Name: "one subject", Jobs: []Job{one, one, one}},
	{Name: "two subjects", Jobs: []Job{one, {Subject: 2}, one}, Batch: true},
	{Name: "more urgent job", Jobs: []Job{one, {Subject: 1, Priority: 1}, one}},
	{Name: "caller's transaction", Jobs: []Job{one, {Subject: 1, InTx: true}, {Subject: 2, InTx: true}}},
	{Name: "next step of the subject", Jobs: []Job{{Subject: 1, Next: 1}, {Subject: 1, Step: true}, {Subject: 1, Priority: 1}}},
	{Name: "next step of another subject", Jobs: []Job{{Subject: 1, Next: 1}, {Subject: 2, Step: true}, {Subject: 2}}},
	{Name: "crossing hand-offs", Jobs: []Job{{Subject: 1, Next: 2}, {Subject: 2, Next: 3}, {Subject: 2, Step: true}, {Subject: 1, Step: true}}, Batch: true},
	{Name: "hand-off against a batch", Jobs: []Job{{Subject: 2, InTx: true, Next: 1}, {Subject: 1, Step: true}, one, {Subject: 2}}, Batch: true},
	{Name: "next step in a closed lane", Closed: true, Jobs: []Job{{Subject: 1, Next: 1}, {Subject: 1, Step: true, Lane: 1, Priority: 1}, one}},
	{Name: "opening lane", Closed: true, Commands: []Op{Lane}, Ops: 1, Jobs: []Job{{Subject: 1, Lane: 1}, one}},
	{Name: "closing lane without the net", Jobs: []Job{{Subject: 1, Lane: 1}, one}, Commands: []Op{Lane, Move, Cancel, HandBack}, Ops: 2},
	{Name: "time, approval, retry", Jobs: []Job{{Subject: 1, Wait: scheduled}, {Subject: 1, Wait: approval}, {Subject: 1, Retries: true}}},
	{Name: "due and urgent jobs", Jobs: []Job{one, {Subject: 1, Priority: 1}, {Subject: 1, Wait: scheduled}}},
	{Name: "two promotions", Jobs: []Job{{Subject: 1, Wait: scheduled}, one}},
	{Name: "cancel", Jobs: []Job{one, one, one}, Commands: []Op{Cancel}, Ops: 1},
	{Name: "stop", Jobs: []Job{one, one}, Commands: []Op{Stop}, Ops: 1},
	{Name: "priority", Jobs: []Job{one, one}, Commands: []Op{Priority}, Ops: 1},
	{Name: "commands", Jobs: []Job{one, {Subject: 1, Wait: scheduled}}, Commands: []Op{Cancel, Priority, HandBack, Again, Prune}, Ops: 1},
	{Name: "move", Jobs: []Job{{Subject: 1, Lane: 1}, one, one}, Commands: []Op{Move}, Ops: 1},
	{Name: "lost replies without the net", Jobs: []Job{one, {Subject: 1, InTx: true}, {Subject: 2}}, Faults: []Fault{LostReply, Abort}, Most: 1},
	{Name: "lost reply of a step", Jobs: []Job{{Subject: 1, Next: 1}, {Subject: 2, Step: true}, {Subject: 2}}, Faults: []Fault{LostReply, Abort}, Most: 1},

	{Name: "closing lane", Jobs: []Job{{Subject: 1, Lane: 1}, one}, Commands: []Op{Lane, HandBack}, Ops: 2, Net: true},
	{Name: "a lane and a crash", Jobs: []Job{{Subject: 1, Lane: 1}, one}, Commands: []Op{Lane, Priority}, Ops: 1, Faults: []Fault{Crash, LostReply}, Most: 1, Net: true},
	{Name: "more urgent job, net", Jobs: []Job{one, {Subject: 1, Priority: 1}, one}, Net: true},
	{Name: "faults", Jobs: []Job{one, one}, Faults: []Fault{Crash, Lapse, LostReply, Abort}, Most: 2, Net: true},
	{Name: "faults in a pipeline", Jobs: []Job{{Subject: 1, Next: 1}, {Subject: 2, Step: true}, {Subject: 2}}, Faults: []Fault{Crash, Lapse, LostReply}, Most: 1, Net: true},
	{Name: "faults and commands", Jobs: []Job{one, one}, Commands: []Op{Cancel, HandBack, Again}, Ops: 1, Faults: []Fault{Crash, Lapse, LostReply}, Most: 1, Net: true},
	{Name: "faults of a caller", Jobs: []Job{one, {Subject: 1, InTx: true}}, Faults: []Fault{Crash, LostReply, Abort}, Most: 2, Net: true},
	{Name: "faults of times and retries", Jobs: []Job{{Subject: 1, Wait: scheduled}, {Subject: 1, Retries: true}}, Faults: []Fault{Crash, LostReply, Abort}, Most: 1, Net: true},

	{Name: "net alone", Slow: true, Net: true, Jobs: []Job{one, {Subject: 1, InTx: true}, {Subject: 1, Retries: true}}},
	{Name: "net alone with steps", Slow: true, Net: true, Jobs: []Job{{Subject: 1, Next: 2}, {Subject: 2, Next: 3}, {Subject: 2, Step: true}, {Subject: 1, Step: true}}, Batch: true},
	{Name: "net alone with commands", Slow: true, Net: true, Jobs: []Job{one, {Subject: 1, Lane: 1}}, Commands: []Op{Lane, Move, Cancel, Priority}, Ops: 1,
		Faults: []Fault{Crash, LostReply}, Most: 1},
}

func explore(t *testing.T, m Scenario, limit int) Result {
	t.Helper()
	start := time.Now()
	r, err := m.Explore(limit)
	t.Logf("%-28s %8d states %8d transitions %5.1f s", m.Name, r.States, r.Transitions, time.Since(start).Seconds())
	is.New(t).NoErr(err)
	return r
}

func TestScenariosKeepInvariants(t *testing.T) {
	total := Result{}
	for _, m := range scenarios {
		r := explore(t, m, 3_000_000)
		if r.Error != "" {
			t.Errorf("%s: %s", m.Name, r.Error)
		}
		total.States, total.Transitions = total.States+r.States, total.Transitions+r.Transitions
	}
	t.Logf("%d states, %d transitions", total.States, total.Transitions)
}

func TestCrashNeedsTheNet(t *testing.T) {
	is := is.New(t)
	m := Scenario{Name: "crash without the net", Jobs: []Job{one, {Subject: 1, InTx: true}}, Faults: []Fault{Crash}, Most: 1}
	r := explore(t, m, 3_000_000)
	is.True(strings.Contains(r.Error, "I-a"))
	m.Net = true
	r = explore(t, m, 3_000_000)
	is.Equal(r.Error, "")
}

// A planted error is found in the scenario with the given name, and the message contains the given text.
func TestPlantedErrorsAreFound(t *testing.T) {
	const waits, guards, lost, order = "I-a", "I-b, I-c", "I-d", "order"
	for _, c := range []struct {
		name     string
		planted  Error
		omits    Op
		scenario string
		message  string
	}{
		{"an admission without the guard", NoGuard, None, "one subject", guards},
		{"an admission that deletes first", DeleteFirst, None, "one subject", lost},
		{"an end without the admission after it", 0, End, "one subject", waits},
		{"a submission without the admission after it", 0, Submit, "one subject", waits},
		{"an admission without a guard and without another one", 0, Admit, "one subject", waits},
		{"an admission without a guard and without yield", AgainWithoutYield, None, "due and urgent jobs", order},
		{"an admission that takes a later job", SkipLocked, None, "more urgent job", "livelock"},
		{"a yield before the admission", YieldFirst, None, "more urgent job", order},
		{"a promotion without the admission after it", 0, Promote, "time, approval, retry", waits},
		{"a promotion that ignores parked jobs", PlaceAhead, None, "due and urgent jobs", order},
		{"a lock that the statement does not know of", SilentLock, None, "two promotions", waits},
		{"a cancellation without the admission after it", 0, Cancel, "cancel", waits},
		{"a stop without the admission after it", 0, Stop, "stop", waits},
		{"a priority without yield and admission after it", 0, Priority, "priority", order},
		{"a move without yield and admission after it", 0, Move, "move", waits},
		{"a lost reply without the admission after it", NoAdmissionAfterUnknown, None, "lost replies without the net", waits},
		{"a caller that takes the guard", CallerTakesGuard, None, "caller's transaction", "caller's transaction"},
		{"guards not in key order", FreeFirst, None, "hand-off against a batch", "deadlock"},
		{"crossing inserts", FreeFirst | BlindInsert, None, "crossing hand-offs", "deadlock"},
		{"a yield that keeps the guard", YieldKeepsGuard, None, "more urgent job", guards},
		{"a cancellation that keeps the guard", CancelKeepsGuard, None, "cancel", guards},
		{"a recovery that frees the guard", RecoveryFrees, None, "faults", guards},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			for _, m := range scenarios {
				if m.Name != c.scenario {
					continue
				}
				m.Planted, m.Omits = c.planted, c.omits
				r := explore(t, m, 3_000_000)
				t.Log(r.Error)
				if !strings.Contains(r.Error, c.message) {
					t.Errorf("the error was not found, or another one: %q", r.Error)
				}
				return
			}
			t.Errorf("unknown scenario %q", c.scenario)
		})
	}
}
