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
	Net      bool  // the poller runs yield and admit
	Slow     bool  // the fast path is off: no statement follows an end or a parking
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
	NoGuard                 Error = 1 << iota // a job is admitted without its guard
	DeleteFirst                               // an admission deletes the parked row even if it did not insert the guard
	AgainWithoutYield                         // an admission that did not insert the guard is repeated without yield
	NoAdmissionAfterUnknown                   // no admission follows a lost reply
	CallerTakesGuard                          // a submission in the caller's transaction inserts the guard
	FreeFirst                                 // an end frees its own guards before it inserts those of next steps
	BlindInsert                               // a statement inserts a guard that its snapshot shows as taken
	PlaceAhead                                // a submission, a next step or a promotion ignores parked jobs
	YieldKeepsGuard                           // yield parks the holder and keeps its guard
	CancelKeepsGuard                          // a cancelled pending job keeps the guard
	RecoveryFrees                             // recovery frees the guard of a job that becomes pending
	SkipLocked                                // an admission takes a later job if the first one is locked
	YieldFirst                                // yield precedes the admission
	SilentLock                                // a promotion updates the row of a job that stays parked in place
)

func (m *Scenario) planted(e Error) bool { return m.Planted&e != 0 }

// subject returns a job's subject, or -1.
func (m *Scenario) subject(j int) int { return m.Jobs[j].Subject - 1 }

// new returns the content of a new job's row, without its kind.
func (m *Scenario) new(j int) cell { return cell(m.Jobs[j].Lane<<6 | m.Jobs[j].Priority<<7) }

func (m *Scenario) initial() State {
	s := State{ops: m.Ops, faults: m.Most}
	if s.rows[laneRow] = laneOpen; m.Closed {
		s.rows[laneRow] = laneClosed
	}
	return s
}

// The invariants.

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
			return fmt.Sprintf("I-d: job %s is in %d places", jobName(j), places)
		}
		g := m.subject(j)
		isLive := s.rows[live(j)] != 0
		if g >= 0 && isLive != (int(s.rows[guard(g)]) == j+1) {
			return fmt.Sprintf("I-b, I-c: job %s is live and the guard of s%d is not its guard, or the reverse", jobName(j), g+1)
		}
		if isLive && m.Jobs[j].Wait != 0 && !has(s.freed, j) {
			return fmt.Sprintf("I-b: job %s is live although its time or approval has not come", jobName(j))
		}
	}
	if m.Net || !s.calm() {
		return ""
	}
	if lost := m.finds(s, Admit, 1<<maxSubjects-1); lost != 0 {
		return fmt.Sprintf("I-a: nobody admits the job of subjects %b, whose guards are free", lost)
	}
	if late := m.finds(s, Yield, 1<<maxSubjects-1) &^ s.late; late != 0 && s.rows[laneRow] == laneOpen {
		return fmt.Sprintf("order: nobody yields the guards of subjects %b", late)
	}
	return ""
}

// calm reports whether no process has anything left to do but to begin something new.
func (s *State) calm() bool {
	for i := range s.proc {
		if s.proc[i].pc != idle || s.proc[i].owed != 0 {
			return false
		}
	}
	return true
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
