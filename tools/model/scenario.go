package model

import "fmt"

// Scenario bounds an exploration: the jobs, the commands, the faults, and whether the safety net works.
type Scenario struct {
	Name     string
	Jobs     []Job
	Batch    bool // the client submits its jobs in one statement, and a pod can end all its jobs in one statement
	Closed   bool // lane 1 is closed at first
	Commands []Op
	Ops      uint8 // the number of commands
	Faults   []Fault
	Most     uint8 // the number of faults
	Net      bool  // the poller admits
	Slow     bool  // the fast path is off: no end hands its guard to a parked job, and no admission follows a commit
	Planted  Error
	Omits    Op // a planted error: the statement that no admission follows
}

// Job is a job of a scenario. The zero value is a job without a subject, which the client submits to the lane that is always open.
type Job struct {
	Subject  int // 1 or 2; 0: none
	Lane     int
	Priority int  // 0 or 1
	InTx     bool // submitted in the caller's transaction
	Step     bool // submitted by the job before it
	Next     int  // the next step; 0: none
	Wait     int  // scheduled or approval
	Retries  bool // the first attempt ends with a retry
}

// Fault is something that happens to a process.
type Fault uint8

// The faults.
const (
	Crash     Fault = iota // pod A dies; its transaction is rolled back
	Lapse                  // pod A's row is closed, but the pod continues
	LostReply              // a transaction commits, and its process does not learn it
	Abort                  // a transaction is rolled back when it commits
)

var faultNames = [...]string{"crashes", "loses its lease", "loses the reply to its commit", "fails to commit"}

// Error is a set of errors planted in the protocol.
type Error uint32

// The planted errors.
const (
	OmittedAdmission        Error = 1 << iota // an end neither hands the guard over nor is followed by an admission
	NoGuard                                   // a job is admitted without its guard
	DeleteFirst                               // an admission deletes the parked row even if it did not insert the guard
	NoSecondAdmission                         // no admission follows an end that found no heir
	NoAdmissionAfterUnknown                   // no admission follows a lost reply
	CallerTakesGuard                          // a submission in the caller's transaction inserts the guard
	ReleaseFirst                              // an end writes its own guards before it inserts those of next steps
	BlindInsert                               // an end inserts a guard that its snapshot shows as taken
	MoveLosesReason                           // a move makes a parked job pending
	CancelKeepsGuard                          // a cancelled pending job keeps the guard
	SilentLock                                // a promotion updates the row of a job that stays parked in place
	NoSwap                                    // a pending job in a closed lane keeps the guard
)

func (m *Scenario) planted(e Error) bool { return m.Planted&e != 0 }

// subject returns a job's subject, or -1.
func (m *Scenario) subject(j int) int { return m.Jobs[j].Subject - 1 }

// first returns the content of a new job's row, without its kind.
func (m *Scenario) first(j int) cell { return cell(m.Jobs[j].Lane<<6 | m.Jobs[j].Priority<<7) }

func (m *Scenario) initial() State {
	s := State{ops: m.Ops, faults: m.Most}
	if s.rows[laneRow] = laneOpen; m.Closed {
		s.rows[laneRow] = laneClosed
	}
	return s
}

// The invariants.

// checkWrite checks a row that is about to be committed: fences only grow, and an end is written once.
func (m *Scenario) checkWrite(s *State, r row) {
	if r >= firstGuard || s.writes[r] == 0 {
		return
	}
	j := int(r) % maxJobs
	fence, ran := 0, false
	for _, old := range []row{live(j), parked(j), done(j)} {
		if c := s.rows[old]; c != 0 {
			fence, ran = max(fence, c.fence()), ran || old == live(j) && c.running()
		}
	}
	c := s.writes[r]
	if c.fence() < fence || r == live(j) && c.running() && !ran && c.fence() == fence {
		panic(violation(fmt.Sprintf("the fence of %s does not grow", m.jobName(j))))
	}
	if r == done(j) && c.kind() == ended && s.rows[r] != 0 {
		panic(violation(fmt.Sprintf("the end of %s is written twice", m.jobName(j))))
	}
}

// check checks the committed rows of a state.
func (m *Scenario) check(s *State) string {
	for j := range m.Jobs {
		places := 0
		for _, r := range []row{live(j), parked(j), done(j)} {
			if s.rows[r] != 0 {
				places++
			}
		}
		if places != int(s.exists>>j&1) {
			return fmt.Sprintf("I-d: job %s is in %d places", m.jobName(j), places)
		}
		g := m.subject(j)
		isLive := s.rows[live(j)] != 0
		if g >= 0 && isLive != (int(s.rows[guard(g)]) == j+1) {
			return fmt.Sprintf("I-b, I-c: job %s is live and the guard of s%d is not its guard, or the reverse", m.jobName(j), g+1)
		}
		if isLive && m.Jobs[j].Wait != 0 && !has(s.freed, j) {
			return fmt.Sprintf("I-b: job %s is live although its time or approval has not come", m.jobName(j))
		}
	}
	return ""
}

// settled reports whether every job that may run has ended. The jobs of a closed lane may wait. Without the net, so may a job whose guard
// is held by a pending job of a closed lane: only the net is certain to take the guard away.
func (m *Scenario) settled(s *State) bool {
	waits := func(c cell) bool { return c.lane() == 1 && s.rows[laneRow] == laneClosed }
	for j := range m.Jobs {
		c := s.rows[live(j)] | s.rows[parked(j)]
		if c == 0 || waits(c) && !s.rows[live(j)].running() {
			continue
		}
		g := m.subject(j)
		if m.Net || g < 0 || s.rows[parked(j)].kind() != subject || s.rows[guard(g)] == 0 {
			return false
		}
		if holder := s.rows[live(int(s.rows[guard(g)])-1)]; holder.kind() != pending || !waits(holder) {
			return false
		}
	}
	return true
}
