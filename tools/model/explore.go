package model

import (
	"fmt"
	"hash/maphash"
	"strings"
)

// Result is the result of an exploration.
type Result struct {
	States      int
	Transitions int
	Error       string // the first violation, with the shortest trace to it; empty if there is none
}

// explorer visits all reachable states in breadth-first order.
type explorer struct {
	*Scenario
	seed   maphash.Seed
	seen   map[uint64]uint32
	queue  []State // the states to visit in the next level
	parent []uint32
	edges  []uint32 // the progress transitions of all states, one after the other
	from   []uint32 // the first of each state's edges
}

// Explore visits all states that the scenario can reach, and checks the invariants in each of them. At most limit states are visited; 0 sets
// no limit.
//
// It checks two properties of the graph of the transitions that are neither commands nor faults. A state without such a transition is
// settled: every job has ended that may run. And the graph has no cycle. It follows that every job ends from every reachable state.
func (m *Scenario) Explore(limit int) (Result, error) {
	e := &explorer{Scenario: m, seed: maphash.MakeSeed(), seen: map[uint64]uint32{}}
	first := m.initial()
	e.add(&first, 0)
	result := Result{}
	var level []State
	for head := 0; len(e.queue) > 0; {
		level, e.queue = e.queue, level[:0]
		for i := range level {
			if limit > 0 && len(e.parent) > limit {
				return Result{}, fmt.Errorf("scenario %q has more than %d states", m.Name, limit)
			}
			e.from = append(e.from, uint32(len(e.edges)))
			if why := e.expand(&level[i], head, &result.Transitions); why != "" {
				result.States, result.Error = len(e.parent), why+"\n"+e.trace(head)
				return result, nil
			}
			head++
		}
	}
	e.from = append(e.from, uint32(len(e.edges)))
	result.States = len(e.parent)
	if id, found := e.cycle(); found {
		result.Error = "livelock: progress leads back to the same state\n" + e.trace(int(id))
	}
	return result, nil
}

func (e *explorer) add(s *State, parent int) uint32 {
	key := maphash.Comparable(e.seed, *s)
	id, ok := e.seen[key]
	if !ok {
		id = uint32(len(e.parent))
		e.seen[key] = id
		e.parent = append(e.parent, uint32(parent))
		e.queue = append(e.queue, *s)
	}
	return id
}

// expand visits a state's transitions, and returns the invariant that the state violates.
func (e *explorer) expand(s *State, id int, transitions *int) (why string) {
	defer func() {
		if r := recover(); r != nil {
			v, ok := r.(violation)
			if !ok {
				panic(r)
			}
			why = string(v)
		}
	}()
	if why := e.check(s); why != "" {
		return why
	}
	progress := false
	e.next(s, func(t step, to *State) {
		*transitions++
		next := e.add(to, id)
		if t.progress {
			progress = true
			e.edges = append(e.edges, next)
		}
	})
	if progress {
		return ""
	}
	for i, p := range s.proc {
		if p.pc == locking || p.pc == inserting {
			return fmt.Sprintf("deadlock: %s waits and nothing else can happen", processNames[i])
		}
	}
	if !e.settled(s) {
		return "I-e: a job waits for ever"
	}
	return ""
}

// trace describes the shortest path to a state.
func (e *explorer) trace(id int) string {
	var path []uint32
	for n := uint32(id); n != 0; n = e.parent[n] {
		path = append(path, n)
	}
	var b strings.Builder
	s := e.initial()
	for n := len(path) - 1; n >= 0; n-- {
		to, name := State{}, ""
		e.next(&s, func(t step, next *State) {
			if name == "" && e.seen[maphash.Comparable(e.seed, *next)] == path[n] {
				to, name = *next, e.stepName(t)
			}
		})
		s = to
		fmt.Fprintf(&b, "%3d %-52s %s\n", len(path)-n, name, e.describe(&s))
	}
	return b.String()
}

// cycle finds a cycle of progress transitions, by a depth-first search.
func (e *explorer) cycle() (uint32, bool) {
	const open, closed = 1, 2
	mark := make([]uint8, len(e.parent))
	at := append([]uint32(nil), e.from...) // the next edge to follow
	for root := range e.parent {
		if mark[root] != 0 {
			continue
		}
		stack := []uint32{uint32(root)}
		mark[root] = open
		for len(stack) > 0 {
			n := stack[len(stack)-1]
			if at[n] == e.from[n+1] {
				mark[n] = closed
				stack = stack[:len(stack)-1]
				continue
			}
			to := e.edges[at[n]]
			at[n]++
			if mark[to] == open {
				return n, true
			}
			if mark[to] == 0 {
				mark[to] = open
				stack = append(stack, to)
			}
		}
	}
	return 0, false
}
