package model

import (
	"fmt"
	"strings"
)

// The bounds of the model. A scenario uses at most this many jobs, subjects and processes.
const (
	maxJobs     = 4
	maxSubjects = 2
	processes   = 5
)

// The processes. Each of them runs one transaction at a time.
const (
	client   = iota // submits through the library
	caller          // submits in a transaction of its own, which it keeps open
	operator        // approves, cancels, moves, …
	podA            // may crash or lose its lease
	podB
)

var processNames = [processes]string{"client", "caller", "operator", "pod A", "pod B"}

// row is a row that a transaction can lock. A job has one row in each of the tables live, parked and done, and a subject has one guard row.
type row uint8

const (
	firstGuard row = 3 * maxJobs
	laneRow    row = firstGuard + maxSubjects // the state of lane 1; lane 0 is always open
	rowCount       = int(laneRow) + 1
)

func live(j int) row   { return row(j) }
func parked(j int) row { return row(maxJobs + j) }
func done(j int) row   { return row(2*maxJobs + j) }
func guard(s int) row  { return firstGuard + row(s) }

// cell is the content of a row; 0 means that the row does not exist. A guard contains the job's index + 1. A row of a job contains its kind,
// fence, lane and priority.
type cell uint8

// The kinds of a job's row in live, parked and done.
const (
	pending   = 1
	runningA  = 2 // on pod A; runningA + 1 is on pod B
	cancelled = 2 // added to the kind of a running job whose cancellation was requested

	scheduled = 1
	retrying  = 2
	approval  = 3
	subject   = 4

	ended  = 1
	pruned = 2

	laneOpen   cell = 1
	laneClosed cell = 2
)

func (c cell) kind() int       { return int(c & 7) }
func (c cell) fence() int      { return int(c >> 3 & 7) }
func (c cell) lane() int       { return int(c >> 6 & 1) }
func (c cell) priority() int   { return int(c >> 7) }
func (c cell) as(k int) cell   { return c&^7 | cell(k) }
func (c cell) owner() int      { return podA + (c.kind()-runningA)%2 }
func (c cell) running() bool   { return c.kind() >= runningA }
func (c cell) requested() bool { return c.kind() >= runningA+cancelled }

// State is one state of the database and of the processes.
type State struct {
	stale  [processes]uint16 // per process: rows that were deleted or replaced after its snapshot
	rows   [rowCount]cell    // committed contents
	writes [rowCount]cell    // contents that the lock's owner will commit
	lock   [rowCount]uint8   // the transaction that locks the row: process + 1
	wrote  [rowCount]uint8   // 1: the lock's owner has updated, inserted or deleted the row; 2: it has replaced it
	proc   [processes]process
	exists uint8 // jobs whose submission was committed
	freed  uint8 // jobs whose time or approval has come
	late   uint8 // subjects whose guard overtakes a job; see tx.overtakes
	ops    uint8 // remaining commands of operators
	faults uint8 // remaining faults
}

// process is one process with its open transaction.
type process struct {
	op     Op
	pc     uint8
	jobs   uint8              // the jobs, or the subjects, that the statement is about
	locked uint8              // the jobs whose rows it has locked and checked
	want   [maxSubjects]uint8 // per subject, the job + 1 for which it inserts the guard
	got    uint8              // the subjects whose guard it has inserted
	after  uint8              // what the process owes after the commit
	snap   [rowCount]cell     // the statement's snapshot

	owed  uint8          // the subjects for which the process must run admit and, with toYield, yield before it
	known [maxJobs]uint8 // fences of the claims that the pod knows
	gone  uint8          // 1: the pod's row was closed; 2: the pod has also crashed
}

// toYield shifts the bits of subjects in process.owed. both are the bits of a subject for which yield and admit are owed.
const (
	toYield     = maxSubjects
	allSubjects = 1<<toYield - 1
)

func both(subjects uint8) uint8 { return subjects<<toYield | subjects }

// The positions of a process in its statement.
const (
	idle = iota
	locking
	inserting
	committing
)

// Op is a statement.
type Op uint8

// The statements of the protocol, in the order of doc.go.
const (
	None Op = iota
	Submit
	SubmitTx
	Claim
	End
	Yield
	Admit
	Promote
	Approve
	Cancel
	Stop
	Priority
	Move
	Lane
	HandBack
	Recover
	Again
	Prune
)

var opNames = [...]string{"nothing", "submit", "submit in its transaction", "claim", "end", "yield", "admit", "promote", "approve", "cancel", "stop",
	"priority", "move", "open or close the lane", "hand back", "recover", "retry", "prune"}

// tx is the view that a statement has of the state.
type tx struct {
	m *Scenario
	s *State
	p *process
	i int // the process
}

// busy reports whether another transaction has locked the row.
func (t tx) busy(r row) bool { return t.s.lock[r] != 0 && t.s.lock[r] != uint8(t.i+1) }

// latest locks a row of the snapshot and returns its latest version: 0 if the row was deleted or replaced after the snapshot. The caller has
// checked that the row is not busy. Like PostgreSQL, it keeps no lock on a row that is gone.
func (t tx) latest(r row) cell {
	if t.p.snap[r] == 0 || t.s.stale[t.i]>>r&1 == 1 {
		return 0
	}
	t.s.lock[r] = uint8(t.i + 1)
	return t.s.rows[r]
}

// put writes a row. Only one transaction can write a row: it has locked the row, or the row from which the job comes.
func (t tx) put(r row, c cell) {
	if t.busy(r) {
		panic(violation(fmt.Sprintf("two transactions write row %d", r)))
	}
	t.s.lock[r], t.s.writes[r], t.s.wrote[r] = uint8(t.i+1), c, max(1, t.s.wrote[r])
}

// violation is a violated invariant.
type violation string

// has reports whether bit n is set in the mask.
func has(mask uint8, n int) bool { return mask>>n&1 == 1 }

func bit(n int) uint8 { return 1 << n }

// rollback ends a transaction without its writes.
func (s *State) rollback(i int) {
	for r := range s.lock {
		if s.lock[r] == uint8(i+1) {
			s.clearLate(row(r), s.rows[r])
			s.lock[r], s.writes[r], s.wrote[r] = 0, 0, 0
		}
	}
	s.finish(i)
}

// clearLate forgets that a guard overtook a job when the guard is gone.
func (s *State) clearLate(r row, c cell) {
	if r >= firstGuard && r < laneRow && c == 0 {
		s.late &^= bit(int(r - firstGuard))
	}
}

// finish omits a transaction, but nothing that its process knows.
func (s *State) finish(i int) {
	s.proc[i] = process{owed: s.proc[i].owed, known: s.proc[i].known, gone: s.proc[i].gone}
	s.stale[i] = 0
}

// commit publishes the writes of a transaction. Snapshots that show a deleted or replaced row will find it gone.
func (t tx) commit() {
	s := t.s
	for r := range s.lock {
		if s.lock[r] != uint8(t.i+1) {
			continue
		}
		if s.wrote[r] > 0 {
			if s.rows[r] != 0 && (s.writes[r] == 0 || s.wrote[r] == 2) {
				for q := range s.proc {
					if q != t.i && (s.proc[q].pc == locking || s.proc[q].pc == inserting) {
						s.stale[q] |= 1 << r
					}
				}
			}
			s.clearLate(row(r), s.writes[r])
			s.rows[r] = s.writes[r]
		}
		s.lock[r], s.writes[r], s.wrote[r] = 0, 0, 0
	}
}

// describe describes the committed rows.
func (m *Scenario) describe(s *State) string {
	var b strings.Builder
	for j := range m.Jobs {
		name := "-"
		if c := s.rows[live(j)]; c != 0 {
			name = [...]string{"", "pending", "running(A)", "running(B)", "cancelling(A)", "cancelling(B)", "", ""}[c.kind()]
		} else if c := s.rows[parked(j)]; c != 0 {
			name = [...]string{"", "scheduled", "retrying", "needs approval", "parked", "", "", ""}[c.kind()]
		} else if s.rows[done(j)] != 0 {
			name = "done"
		}
		fmt.Fprintf(&b, "%s %s  ", jobName(j), name)
	}
	for g := range maxSubjects {
		if c := s.rows[guard(g)]; c != 0 {
			fmt.Fprintf(&b, "guard(s%d)=%s  ", g+1, jobName(int(c)-1))
		}
	}
	return b.String()
}

func jobName(j int) string { return string(rune('a' + j)) }
