package store_test

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// All of these tests use a single row, that of job 1, which has a subject and was first claimed by pod 1. Pod 1 or pod 3 reclaims it, and
// pod 4 recovers it.
var (
	theLease = job.Lease{JobID: 1, Fence: 1, Pod: bootOf(1)}
	theNet   = bootOf(4)
)

// pairOperation is one of sixteen operations. The test runs each pair of them on the same row.
type pairOperation struct {
	name      string
	from      []string // states of the row in which the operation writes something if it comes first
	again     bool     // the operation skips locked rows, and its callers repeat it
	operation func(b *bench, first bool) operation
}

var pairOperations = []pairOperation{
	{"claim", []string{"pending", "outranked"}, true, func(_ *bench, first bool) operation {
		podID := bootOf(3)
		if first {
			podID = theLease.Pod // only the fence then distinguishes the old claim from the new one
		}
		return claims(podID, []store.Want{{Lane: "default", N: 5}}, []string{"k"}, true)
	}},
	{"heartbeat", []string{"running", "lapsed"}, false, func(*bench, bool) operation { return beats(theLease.Pod, false) }},
	{"finish", []string{"running", "cancelling", "lapsed", "closed"}, true, func(b *bench, _ bool) operation {
		child := b.job() // each finish has a different child, so that the tables show which one was accepted
		child.ParentID, child.PipelineID, child.Step, child.Subject, child.Starts = ptr(int64(1)), 1, 1, "s", true
		return finishes(theLease.Pod, store.Ending{ID: 1, Fence: 1, State: job.Succeeded, Outcome: job.OK, Reason: job.ReasonOK, Next: &child})
	}},
	{"fail", []string{"running", "closed"}, true, func(*bench, bool) operation {
		return finishes(theLease.Pod, store.Ending{ID: 1, Fence: 1, State: job.Failed, Outcome: job.Error, Reason: job.ReasonError, Error: "boom"})
	}},
	{"retry", []string{"running", "closed"}, false, func(*bench, bool) operation { return parks(theLease, "retry", 0) }},
	{"cancel", []string{"pending", "running", "closed", "parked", "waiting", "outranked"}, false, func(*bench, bool) operation { return cancels(1, false) }},
	{"stop", []string{"pending", "running", "running anew", "cancelling", "parked", "waiting", "outranked"}, false, func(*bench, bool) operation { return cancels(1, true) }},
	{"nice", []string{"pending", "parked", "waiting", "outranked"}, false, func(*bench, bool) operation { return nices(1, 50) }},
	{"operator retry", []string{"failed", "cancelled"}, false, func(*bench, bool) operation { return retriesAgain(1) }},
	{"recover", []string{"lapsed", "closed", "closed, cancelling"}, true, func(*bench, bool) operation { return recovers(theNet, theLease.Pod) }},
	{"hand back", []string{"running", "closed"}, false, func(*bench, bool) operation { return handsBack(theLease.Pod, theLease) }},
	{"promote", []string{"parked"}, true, func(*bench, bool) operation { return promotes(10) }},
	{"admit", []string{"waiting"}, true, func(*bench, bool) operation { return admits(store.Line{Kind: "k", Subject: "s"}) }},
	{"yield", []string{"outranked"}, true, func(*bench, bool) operation { return yields(store.Line{Kind: "k", Subject: "s"}) }},
	{"lane change", []string{"running", "running anew", "pending"}, false, func(_ *bench, first bool) operation {
		return changesLane(store.Lane{Name: "default", SlotsPerPod: ptr(1), Enabled: first, Drained: !first})
	}},
	{"retention", []string{"ended"}, false, func(*bench, bool) operation { return forgets(job.Succeeded) }},
}

// outranking is a more urgent job of the same subject, which waits.
var outranking = store.NewJob{ID: 900, Kind: "k", Lane: "default", Subject: "s", Args: json.RawMessage(`1`), Priority: 90, Submitter: "ann", Actor: "ann"}

// begin lists the operations that take the row from running on pod 1 to the state in which each test begins.
var begin = map[string][]operation{
	"running":    {},
	"cancelling": {cancels(1, false)},
	"pending":    {handsBack(theLease.Pod, theLease)}, // the former owner keeps sending writes
	"running anew": {handsBack(theLease.Pod, theLease),
		claims(theLease.Pod, []store.Want{{Lane: "default", N: 1}}, []string{"k"}, true)}, // the same pod makes the new claim, so that only the fence differs
	"lapsed":             {lapses(theLease.Pod)},
	"closed":             {lapses(theLease.Pod), closesLapsed(theNet)},
	"closed, cancelling": {cancels(1, false), lapses(theLease.Pod), closesLapsed(theNet)},
	"failed":             {finishes(theLease.Pod, store.Ending{ID: 1, Fence: 1, State: job.Failed, Outcome: job.Error, Reason: job.ReasonError, Error: "boom"})},
	"cancelled":          {cancels(1, true)},
	"parked":             {parks(theLease, "retry", 0)},
	"waiting":            {parks(theLease, "retry", 0), waitsForSubject(1)},
	"outranked":          {handsBack(theLease.Pod, theLease), enqueues(theLease.Pod, []store.NewJob{outranking})},
	"ended":              {finishes(theLease.Pod, store.Ending{ID: 1, Fence: 1, State: job.Succeeded, Outcome: job.OK, Reason: job.ReasonOK}), ages(1)},
}

// Every pair of operations runs concurrently on the same row. The first operation writes everything and is then held just before it
// commits. The second operation starts, and either waits, skips the row, or is unaffected. Then the first operation commits or rolls back.
// Both results and the tables' contents must be the same as if the transactions had run one after the other, in some order.
func TestOperationPairsOnSameRow(t *testing.T) {
	t.Parallel()
	ran := &tally{how: map[string]int{}, pairs: map[[2]string]int{}}
	var free stages
	outer := t
	t.Run("first", func(t *testing.T) {
		for i, first := range pairOperations {
			t.Run(first.name, func(t *testing.T) {
				t.Parallel()
				s := free.take(outer)
				defer free.put(s)
				for _, from := range startsOf(first) {
					for k, second := range pairOperations {
						if !runsPair(i, k) {
							continue
						}
						for _, commits := range pairEnds {
							name := fmt.Sprintf("%s, then %s, commits %v", from, second.name, commits)
							t.Run(name, func(t *testing.T) { ran.add(first, second, s.meet(t, from, first, second, commits)) })
						}
					}
				}
			})
		}
	})
	if strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		return // only some of the pairs were selected
	}
	is := is.New(t)
	n := len(pairOperations)
	unordered, pairs, want := map[[2]string]bool{}, 0, 0
	for pair := range ran.pairs {
		unordered[[2]string{min(pair[0], pair[1]), max(pair[0], pair[1])}] = true
	}
	for i, first := range pairOperations {
		for k := range pairOperations {
			if runsPair(i, k) {
				pairs, want = pairs+1, want+len(startsOf(first))*len(pairEnds)
			}
		}
	}
	is.Equal(n, 16)
	is.Equal(len(unordered), n*(n+1)/2) // every pair of operations has run
	is.Equal(len(ran.pairs), pairs)     // in the long test run, every pair has run in both orders
	cases := 0
	for _, times := range ran.pairs {
		is.True(times >= len(pairEnds)) // each pair ran with a commit and, in the long test run, with a rollback
		cases += times
	}
	is.Equal(cases, want) // each pair ran from every state in which the first operation writes, or from only one such state in make test
	for _, how := range []string{"waited", "passed by", "went on"} {
		is.True(ran.how[how] > 0) // each of the three behaviors of the second operation occurred
	}
	t.Logf("%d tests: %v", cases, ran.how)
}

// tally counts the pairs that have run.
type tally struct {
	mu    sync.Mutex
	how   map[string]int
	pairs map[[2]string]int
}

func (r *tally) add(first, second pairOperation, how string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.how[how]++
	r.pairs[[2]string{first.name, second.name}]++
}

// meet runs two operations concurrently and returns how the second one behaved.
func (s *stage) meet(t *testing.T, from string, first, second pairOperation, commits bool) (how string) {
	b := s.begin(t, from)
	one, two := first.operation(b, true), second.operation(b, false)
	start := b.m.clone()

	release := s.hold(t)
	a := s.ask(one, s.held)
	pgtest.Wait(t, "the first to be held before its commit", func() bool { return s.waiting(t) == 1 })
	z := s.ask(two, s.st)
	early := false
	pgtest.Wait(t, "the second to wait or to be done", func() bool {
		select {
		case <-z.done:
			early = true
		default:
		}
		return early || s.waiting(t) > 1
	})
	s.checkMeanwhile(t, start, two)
	release(commits)
	<-a.done
	<-z.done

	legal := outcomes(start, one, two)
	if !commits {
		if !strings.Contains(a.answer, "rolled back by the test") {
			t.Errorf("%s was rolled back but returned %s", one.name, a.answer)
		}
		a.answer, legal = "", outcomes(start, operation{}, two) // as if the first operation had never run
	}
	how = "waited"
	if early {
		how = "went on"
	}
	found := s.table(t)
	if !allowed(legal, outcome{found, a.answer, z.answer}) && early && second.again {
		how = "passed by"
		z = s.ask(two, s.st)
		<-z.done
		found = s.table(t)
	}
	if !allowed(legal, outcome{found, a.answer, z.answer}) {
		t.Errorf("%s (%s) and %s (%s), which %s: no serial order explains the result", one.name, a.answer, two.name, z.answer, how)
		for i, l := range legal {
			t.Logf("order %d returns %s and %s, and the tables differ:%s", i, l.one, l.two, differs(found, l.table))
		}
	}
	s.check(t)
	return how
}

// checkMeanwhile checks that readers see only whole transactions of the second operation while the first one is held: all, some or none of
// them.
func (s *stage) checkMeanwhile(t *testing.T, start *model, two operation) {
	t.Helper()
	if s.barred(t) {
		return
	}
	found, m := s.table(t), start.clone()
	for i := 0; differs(found, m.table()) != ""; i++ {
		if i == len(two.stages) {
			t.Errorf("while the first operation is held, %s is half done; compared with its end:%s", two.name, differs(found, m.table()))
			return
		}
		two.stage(m, i)
	}
}

// outcome is the combined result of two operations.
type outcome struct {
	table    []string
	one, two string
}

func allowed(legal []outcome, o outcome) bool {
	return slices.ContainsFunc(legal, func(l outcome) bool {
		return l.one == o.one && l.two == o.two && slices.Equal(l.table, o.table)
	})
}

// outcomes returns the results of every order in which two operations' transactions can run.
func outcomes(start *model, one, two operation) (list []outcome) {
	var goOn func(m *model, i, j int, said outcome)
	goOn = func(m *model, i, j int, said outcome) {
		if i == len(one.stages) && j == len(two.stages) {
			said.table = m.table()
			list = append(list, said)
		}
		if i < len(one.stages) {
			m, said := m.clone(), said
			said.one = cmp.Or(one.stage(m, i), said.one)
			goOn(m, i+1, j, said)
		}
		if j < len(two.stages) {
			m, said := m.clone(), said
			said.two = cmp.Or(two.stage(m, j), said.two)
			goOn(m, i, j+1, said)
		}
	}
	goOn(start, 0, 0, outcome{})
	return list
}
