//go:build long

package model

import "testing"

func TestLargerScenariosKeepInvariants(t *testing.T) {
	commands := []Op{Cancel, Priority, Move, Lane, HandBack, Again, Prune}
	faults := []Fault{Crash, Lapse, LostReply, Abort}
	for _, m := range []Scenario{
		{Name: "moves between lanes", Closed: true, Jobs: []Job{{Subject: 1, Lane: 1}, one, one}, Commands: []Op{Move}, Ops: 1, Net: true},
		{Name: "priority of one of three", Jobs: []Job{one, one, one}, Commands: []Op{Priority}, Ops: 1},
		{Name: "two commands", Jobs: []Job{one, {Subject: 1, Wait: scheduled}}, Commands: []Op{Cancel, Priority, HandBack, Again, Prune}, Ops: 2},
		{Name: "three jobs, faults", Jobs: []Job{one, {Subject: 2}, one}, Faults: faults, Most: 2, Net: true},
		{Name: "three jobs, lane commands", Jobs: []Job{one, {Subject: 1, Lane: 1}, one}, Commands: []Op{Move, Lane}, Ops: 1, Net: true},
		{Name: "a lane with faults", Jobs: []Job{one, {Subject: 1, Lane: 1}}, Commands: []Op{Lane, Move, HandBack}, Ops: 2, Faults: faults, Most: 1, Net: true},
		{Name: "commands and faults", Jobs: []Job{one, {Subject: 1, Next: 2}, {Subject: 1, Step: true}}, Commands: []Op{Cancel, HandBack}, Ops: 1, Faults: faults, Most: 1, Net: true},
		{Name: "two jobs, commands", Jobs: []Job{one, {Subject: 1, Lane: 1}}, Commands: commands, Ops: 2, Net: true},
		{Name: "times and a caller, faults", Jobs: []Job{{Subject: 1, InTx: true}, {Subject: 1, Wait: scheduled}, {Subject: 1, Retries: true}}, Faults: faults, Most: 1, Net: true},
		{Name: "crossing hand-offs, faults", Batch: true, Faults: faults, Most: 2, Net: true,
			Jobs: []Job{{Subject: 1, Next: 2}, {Subject: 2, Next: 3}, {Subject: 2, Step: true}, {Subject: 1, Step: true}}},
		{Name: "lane and a retry, no net", Jobs: []Job{{Subject: 1, Lane: 1, Retries: true}, one, {Subject: 1, Lane: 1}}, Commands: []Op{Lane}, Ops: 1},
		{Name: "lane and a step, no net", Commands: []Op{Lane}, Ops: 2,
			Jobs: []Job{{Subject: 1, Next: 1}, {Subject: 2, Step: true, Lane: 1}, {Subject: 2, InTx: true}, {Subject: 2}}},
		{Name: "four jobs of one subject", Jobs: []Job{one, one, one, {Subject: 1, InTx: true}}},
	} {
		if r := explore(t, m, 12_000_000); r.Error != "" {
			t.Errorf("%s: %s", m.Name, r.Error)
		}
	}
}
