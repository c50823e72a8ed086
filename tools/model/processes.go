package model

import (
	"fmt"
	"strings"
)

// step names a transition. progress is false for commands and faults, which need not happen.
type step struct {
	process  int
	verb     verb
	op       Op
	jobs     uint8
	progress bool
}

type verb uint8

const (
	begins verb = iota
	continues
	commits
	readsBack
	hears
	fails // fails + Fault
)

func (m *Scenario) stepName(t step) string {
	name := fmt.Sprintf("%-8s ", processNames[t.process])
	if t.verb >= fails {
		name += faultNames[t.verb-fails] + ": "
	}
	name += opNames[t.op]
	if t.op == Admit {
		name += fmt.Sprintf(" (subjects %b)", t.jobs)
	} else if t.jobs != 0 {
		var names []string
		for j := range m.Jobs {
			if has(t.jobs, j) {
				names = append(names, m.jobName(j))
			}
		}
		name += " " + strings.Join(names, ", ")
	}
	switch t.verb {
	case begins:
		name += ": snapshot"
	case continues:
		name += ": locks, writes"
	case commits:
		name += ": commit"
	case readsBack:
		name += ": reads back"
	case hears:
		name += ": is notified"
	}
	return name
}

// next calls visit with each transition of a state.
func (m *Scenario) next(from *State, visit func(step, *State)) {
	for i := range from.proc {
		p := &from.proc[i]
		switch p.pc {
		case idle:
			if p.gone < 2 {
				m.choose(from, i, visit)
			}
		case locking, inserting:
			to := *from
			if m.proceed(&to, i) {
				visit(step{i, continues, p.op, p.jobs, true}, &to)
			}
		case committing:
			to := *from
			m.commit(&to, i, false)
			visit(step{i, commits, p.op, p.jobs, true}, &to)
			m.fail(from, i, LostReply, visit, func(to *State) { m.commit(to, i, true) })
			m.fail(from, i, Abort, visit, func(to *State) { m.rolledBack(to, i) })
		case unknown:
			to := *from
			m.readBack(&to, i)
			visit(step{i, readsBack, p.op, p.jobs, true}, &to)
		}
	}
	if from.proc[podA].gone == 0 {
		m.fail(from, podA, Crash, visit, func(to *State) {
			to.rollback(podA)
			to.proc[podA] = process{gone: 2}
		})
		m.fail(from, podA, Lapse, visit, func(to *State) { to.proc[podA].gone = 1 })
	}
}

func (m *Scenario) fail(from *State, i int, f Fault, visit func(step, *State), apply func(*State)) {
	for _, of := range m.Faults {
		if of == f && from.faults > 0 {
			to := *from
			to.faults--
			apply(&to)
			visit(step{i, fails + verb(f), from.proc[i].op, from.proc[i].jobs, false}, &to)
		}
	}
}

// choose begins a statement of an idle process.
func (m *Scenario) choose(from *State, i int, visit func(step, *State)) {
	begin := func(op Op, jobs uint8, progress bool) {
		to := *from
		if !progress {
			to.ops--
		}
		p := &to.proc[i]
		p.op, p.jobs, p.pc, p.snap = op, jobs, locking, to.rows
		visit(step{i, begins, op, jobs, progress}, &to)
	}
	p := &from.proc[i]
	if p.owed != 0 {
		to := *from
		q := &to.proc[i]
		q.owed = 0
		if found := m.finds(from, p.owed, false); found != 0 {
			q.op, q.jobs, q.pc, q.snap = Admit, found, locking, to.rows
		}
		visit(step{i, begins, Admit, p.owed, true}, &to)
		return
	}
	switch i {
	case client, caller:
		var todo uint8
		for j, job := range m.Jobs {
			if !job.Step && job.InTx == (i == caller) && !has(from.exists, j) {
				todo |= bit(j)
			}
		}
		switch {
		case i == caller && todo != 0:
			begin(SubmitTx, todo, true)
		case m.Batch && todo != 0:
			begin(Submit, todo, true)
		default:
			for j := range m.Jobs {
				if has(todo, j) {
					begin(Submit, bit(j), true)
				}
			}
		}
	case operator:
		for j := range m.Jobs {
			if from.rows[parked(j)].kind() == approval {
				begin(Approve, bit(j), true)
			}
		}
		if from.ops > 0 {
			m.command(from, begin)
		}
	default:
		m.poll(from, i, begin, visit)
	}
}

// command begins the commands of operators.
func (m *Scenario) command(from *State, begin func(Op, uint8, bool)) {
	for _, op := range m.Commands {
		if op == Lane {
			begin(op, 0, false)
			continue
		}
		for j := range m.Jobs {
			open := from.rows[live(j)] != 0 || from.rows[parked(j)] != 0
			over := from.rows[done(j)].kind() == ended
			if op != HandBack && (open && op != Again && op != Prune || over && (op == Again || op == Prune)) {
				begin(op, bit(j), false)
			}
		}
	}
}

// poll begins the statements of a pod.
func (m *Scenario) poll(from *State, i int, begin func(Op, uint8, bool), visit func(step, *State)) {
	var mine uint8
	p := &from.proc[i]
	for j := range m.Jobs {
		if p.known[j] != 0 && from.lock[live(j)] == 0 {
			mine |= bit(j)
			begin(End, bit(j), true)
			for _, op := range m.Commands {
				if op == HandBack && from.ops > 0 {
					begin(HandBack, bit(j), false)
				}
			}
		}
	}
	if mine&(mine-1) != 0 && m.Batch {
		begin(End, mine, true)
	}
	if p.gone > 0 {
		return
	}
	if from.told != 0 {
		to := *from
		to.proc[i].owed, to.told = from.told, 0
		visit(step{i, hears, Admit, from.told, true}, &to)
	}
	claims, recovers := false, false
	for j := range m.Jobs {
		c := from.rows[live(j)]
		free := from.lock[live(j)] == 0
		claims = claims || free && c.kind() == pending && (c.lane() == 0 || from.rows[laneRow] == laneOpen)
		recovers = recovers || free && c.running() && c.owner() == podA && from.proc[podA].gone > 0
		if k := from.rows[parked(j)].kind(); (k == scheduled || k == retrying) && from.lock[parked(j)] == 0 {
			begin(Promote, bit(j), true)
		}
	}
	if claims {
		begin(Claim, 0, true)
	}
	if recovers {
		begin(Recover, 0, true)
	}
	if m.Net {
		m.net(from, begin)
	}
}

// net begins the statements of the safety net.
func (m *Scenario) net(from *State, begin func(Op, uint8, bool)) {
	if found := m.finds(from, 1<<maxSubjects-1, true); found != 0 {
		begin(Admit, found, true)
	}
}

// finds returns those of the subjects for which an admission would find something to do and, with unlocked, no locked row.
func (m *Scenario) finds(from *State, among uint8, unlocked bool) (found uint8) {
	t := tx{m: m, s: from, p: &process{snap: from.rows}}
	for k := range m.Jobs {
		s := m.subject(k)
		if from.rows[parked(k)].kind() != subject || !has(among, s) || unlocked && (from.lock[parked(k)] != 0 || from.lock[guard(s)] != 0) {
			continue
		}
		h := int(from.rows[guard(s)]) - 1
		if h < 0 || !m.planted(NoSwap) && from.rows[live(h)].kind() == pending && t.swaps(from.rows[live(h)], from.rows[parked(k)]) &&
			!(unlocked && from.lock[live(h)] != 0) {
			found |= bit(s)
		}
	}
	return found
}

// proceed executes the next step of a statement: it locks rows, or inserts a guard. After the last of these, it writes. It returns false if the
// statement waits for another transaction.
func (m *Scenario) proceed(s *State, i int) bool {
	t := tx{m, s, &s.proc[i], i}
	if t.p.pc == locking {
		switch statements[t.p.op].lock(t) {
		case wait:
			return false
		case restart:
			t.p.snap, s.stale[i] = s.rows, 0
			return true
		case nothing:
			m.foundNothing(t)
			return true
		}
	} else if !t.insertGuard() {
		return false
	}
	for g := range maxSubjects {
		if t.p.want[g] != 0 && !has(t.p.got, g) {
			t.p.pc = inserting
			return true
		}
	}
	statements[t.p.op].write(t)
	t.p.pc, t.p.snap, s.stale[i] = committing, [rowCount]cell{}, 0
	return true
}

// insertGuard inserts the first guard that the statement still wants, with ON CONFLICT DO NOTHING.
func (t tx) insertGuard() bool {
	for g := range maxSubjects {
		if t.p.want[g] == 0 || has(t.p.got, g) {
			continue
		}
		r := guard(g)
		if t.busy(r) && t.s.wrote[r] > 0 {
			if t.s.lock[r] == caller+1 && t.i != caller {
				panic(violation("a statement waits for the caller's transaction"))
			}
			return false
		}
		if t.s.rows[r] != 0 || t.s.lock[r] != 0 {
			t.p.want[g] = 0
			return true
		}
		t.put(r, cell(t.p.want[g]))
		t.p.got |= bit(g)
		return true
	}
	return true
}

// foundNothing ends a statement that has nothing to write. A transaction that has locked rows must still end.
func (m *Scenario) foundNothing(t tx) {
	for j := range m.Jobs {
		if t.p.op == End && has(t.p.jobs, j) && !t.busy(live(j)) {
			t.p.known[j] = 0 // the lease was lost
		}
	}
	for r := range t.s.lock {
		if t.s.lock[r] == uint8(t.i+1) {
			t.p.pc, t.p.snap, t.s.stale[t.i] = committing, [rowCount]cell{}, 0
			return
		}
	}
	t.s.finish(t.i)
}

// commit commits a transaction. With lost, its process does not learn that.
func (m *Scenario) commit(s *State, i int, lost bool) {
	t := tx{m, s, &s.proc[i], i}
	t.commit()
	if t.p.op == Promote || t.p.op == Approve || t.p.op == Again {
		s.freed |= t.p.locked
	}
	for j := range m.Jobs {
		if s.rows[live(j)]|s.rows[parked(j)]|s.rows[done(j)] != 0 {
			s.exists |= bit(j)
		}
	}
	if m.Slow || m.Omits != None && m.Omits == t.p.op {
		t.p.after = 0
	}
	if i == caller {
		s.told |= t.p.after // the NOTIFY is part of the commit
		t.p.after = 0
	}
	if lost {
		*t.p = process{op: t.p.op, jobs: t.p.jobs, pc: unknown, owed: t.p.owed, known: t.p.known, gone: t.p.gone}
		return
	}
	t.p.owed |= t.p.after
	m.learn(s, i, t.p.jobs)
	s.finish(i)
}

// learn updates the claims that a pod knows, after a statement about the given jobs.
func (m *Scenario) learn(s *State, i int, jobs uint8) {
	for j := range m.Jobs {
		if i >= podA && has(jobs, j) && s.proc[i].op != Admit {
			s.proc[i].known[j] = 0
			if c := s.rows[live(j)]; c.running() && c.owner() == i {
				s.proc[i].known[j] = uint8(c.fence())
			}
		}
	}
}

// rolledBack rolls a transaction back. While it was open, it may have hidden a parked row from an end.
func (m *Scenario) rolledBack(s *State, i int) {
	about := m.about(&s.proc[i])
	s.rollback(i)
	if i != caller && !m.Slow {
		s.proc[i].owed |= about
	}
}

// about returns the subjects of a process's statement.
func (m *Scenario) about(p *process) (subjects uint8) {
	switch p.op {
	case Admit:
		return p.jobs
	case Recover:
		return 1<<maxSubjects - 1
	}
	for j, job := range m.Jobs {
		if has(p.jobs, j) {
			subjects |= 1 << job.Subject >> 1
			if job.Next > 0 {
				subjects |= 1 << m.Jobs[job.Next].Subject >> 1
			}
		}
	}
	return subjects
}

// readBack reads the outcome of a statement whose reply was lost: the claims that the pod holds. It cannot read whether the statement found an
// heir, so the process owes an admission to all subjects of the statement.
func (m *Scenario) readBack(s *State, i int) {
	p := &s.proc[i]
	if i == caller { // the NOTIFY was part of the commit
		s.finish(i)
		return
	}
	m.learn(s, i, p.jobs)
	if !m.planted(NoAdmissionAfterUnknown) && !m.Slow {
		p.owed |= m.about(p)
	}
	s.finish(i)
}
