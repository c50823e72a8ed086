package model

import (
	"fmt"
	"slices"
	"strings"
)

// step names a transition. progress is false for commands and faults, and for polls at the moment of another statement: none of these need happen.
type step struct {
	process  int
	what     string
	op       Op
	jobs     uint8
	progress bool
}

func (m *Scenario) stepName(t step) string {
	names := ""
	for n := range maxJobs {
		if has(t.jobs, n) && (t.op == Admit || t.op == Yield) {
			names += fmt.Sprintf(" s%d", n+1)
		} else if has(t.jobs, n) {
			names += " " + jobName(n)
		}
	}
	return strings.Join([]string{processNames[t.process], opNames[t.op] + names, t.what}, ", ")
}

// next calls visit with each transition of a state.
func (m *Scenario) next(from *State, visit func(step, *State)) {
	for i := range from.proc {
		p := &from.proc[i]
		to := *from
		do := func(what string, progress bool) { visit(step{i, what, p.op, p.jobs, progress}, &to) }
		fail := func(f Fault, apply func()) {
			if slices.Contains(m.Faults, f) && from.faults > 0 {
				to = *from
				to.faults--
				apply()
				do(faultNames[f], false)
			}
		}
		switch p.pc {
		case idle:
			if p.gone < 2 {
				m.choose(from, i, visit)
			}
		case locking, inserting:
			if m.proceed(&to, i) {
				do("locks and writes", true)
			}
		case committing:
			m.commit(&to, i)
			do("commit", true)
			if m.Net || m.repeats(p) != 0 {
				fail(LostReply, func() { m.commit(&to, i); m.readBack(&to, i, p) })
			}
			fail(Abort, func() {
				to.rollback(i)
				if p.op == Yield || p.op == Admit {
					to.proc[i].owed |= m.repeats(p)
				}
			})
		}
		if i == podA && p.gone == 0 {
			fail(Crash, func() {
				to.rollback(podA)
				to.proc[podA] = process{gone: 2}
			})
			fail(Lapse, func() { to.proc[podA].gone = 1 })
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
		visit(step{i, "snapshot", op, jobs, progress}, &to)
	}
	if owed := from.proc[i].owed; owed != 0 {
		to := *from
		p, of := &to.proc[i], owed&allSubjects
		if p.op, p.owed = Admit, owed&^allSubjects; of == 0 || m.planted(YieldFirst) && owed>>toYield != 0 {
			p.op, of, p.owed = Yield, owed>>toYield, owed&allSubjects
		}
		if p.jobs = m.finds(from, p.op, of); p.jobs != 0 {
			p.pc, p.snap = locking, to.rows
		} else {
			to.finish(i)
		}
		visit(step{i, "snapshot", to.proc[i].op, of, true}, &to)
		return
	}
	if i >= podA {
		m.poll(from, i, begin, visit)
		return
	}
	todo := uint8(0)
	for j, job := range m.Jobs {
		if i != operator && !job.Step && job.InTx == (i == caller) && !has(from.exists, j) {
			todo |= bit(j)
			if i == client && !m.Batch {
				begin(Submit, bit(j), true)
			}
		}
		if i == operator && from.rows[parked(j)].kind() == approval {
			begin(Approve, bit(j), true)
		}
	}
	switch {
	case todo != 0 && i == caller:
		begin(SubmitTx, todo, true)
	case todo != 0 && m.Batch:
		begin(Submit, todo, true)
	case i == operator && from.ops > 0:
		m.command(from, begin)
	}
}

// command begins the commands of operators.
func (m *Scenario) command(from *State, begin func(Op, uint8, bool)) {
	for _, op := range m.Commands {
		for j := range m.Jobs {
			open := from.rows[live(j)] != 0 || from.rows[parked(j)] != 0
			switch {
			case op == HandBack || op == Lane:
			case open && op != Again && op != Prune, from.rows[done(j)].kind() == ended && (op == Again || op == Prune):
				begin(op, bit(j), false)
			}
		}
		if op == Lane {
			begin(op, 0, false)
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
			if from.ops > 0 && slices.Contains(m.Commands, HandBack) {
				begin(HandBack, bit(j), false)
			}
		}
	}
	if mine&(mine-1) != 0 && m.Batch {
		begin(End, mine, true)
	}
	if p.gone > 0 {
		return
	}
	claims, recovers := false, false
	for j := range m.Jobs {
		c, free := from.rows[live(j)], from.lock[live(j)] == 0
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
	if found := m.finds(from, Yield, allSubjects) | m.finds(from, Admit, allSubjects); m.Net && found != 0 {
		to := *from
		to.proc[i].owed = both(found)
		visit(step{i, "poll", Yield, found, from.calm()}, &to)
	}
}

// finds returns those of the subjects for which yield or admit, with a snapshot of this state, would find something to do.
func (m *Scenario) finds(from *State, op Op, among uint8) (found uint8) {
	t := tx{m: m, s: from, p: &process{snap: from.rows}}
	for s := range maxSubjects {
		h := int(from.rows[guard(s)]) - 1
		switch {
		case !has(among, s):
		case op == Yield && h >= 0 && t.yields(s, from.rows[live(h)]):
			found |= bit(s)
		case op == Admit && h < 0:
			t.waiting(s, func(int, cell) { found |= bit(s) })
		}
	}
	return found
}

// proceed executes the next step of a statement: it locks rows, or inserts a guard. After the last of these, it writes. It returns false if the
// statement waits for another transaction.
func (m *Scenario) proceed(s *State, i int) bool {
	t := tx{m, s, &s.proc[i], i}
	if t.p.pc == locking {
		switch t.lock() {
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
	if t.p.op == Lane {
		t.put(laneRow, s.rows[laneRow]^laneOpen^laneClosed)
	}
	t.each(t.write)
	t.p.pc, t.p.snap, s.stale[i] = committing, [rowCount]cell{}, 0
	return true
}

// insertGuard inserts the first guard that the statement still wants, with ON CONFLICT DO NOTHING.
func (t tx) insertGuard() bool {
	g := 0
	for t.p.want[g] == 0 || has(t.p.got, g) {
		g++
	}
	r := guard(g)
	switch {
	case t.busy(r) && t.s.lock[r] == caller+1:
		panic(violation("a statement waits for the caller's transaction"))
	case t.busy(r):
		return false
	case t.s.rows[r] != 0 || t.s.lock[r] != 0:
		t.p.want[g] = 0
		return true
	}
	t.put(r, cell(t.p.want[g]))
	t.p.got |= bit(g)
	if t.overtakes(g) {
		t.s.late |= bit(g)
	}
	return true
}

// overtakes reports whether the statement inserts a guard although a more urgent job is parked that its snapshot does not show, and although no
// process is still going to run admit and yield for the subject, or waits for the guard.
func (t tx) overtakes(s int) (yes bool) {
	j := int(t.p.want[s]) - 1
	c := max(t.s.rows[parked(j)], t.m.new(j))
	now := tx{t.m, t.s, &process{snap: t.s.rows}, t.i}
	now.waiting(s, func(k int, late cell) {
		yes = yes || t.p.snap[parked(k)].kind() != subject && now.open(late) && (!now.open(c) || late.priority() > c.priority())
	})
	for i, p := range t.s.proc {
		owed := p.owed | p.after
		if i != t.i && (has(owed&(owed>>toYield), s) || p.op == Admit && p.pc == inserting && p.want[s] != 0) {
			return false
		}
	}
	return yes
}

// foundNothing ends a statement that has nothing to write. A transaction that has locked rows must still end.
func (m *Scenario) foundNothing(t tx) {
	for j := range m.Jobs {
		if t.p.op == End && has(t.p.jobs, j) && !t.busy(live(j)) {
			t.p.known[j] = 0 // the lease was lost
		}
	}
	if slices.Contains(t.s.lock[:], uint8(t.i+1)) {
		t.p.pc, t.p.snap, t.s.stale[t.i] = committing, [rowCount]cell{}, 0
	} else {
		t.s.finish(t.i)
	}
}

// commit commits a transaction, and notes what its process owes.
func (m *Scenario) commit(s *State, i int) {
	t := tx{m, s, &s.proc[i], i}
	t.commit()
	now := tx{m, s, &process{snap: s.rows}, i}
	t.each(func(j int) { // the heir of an end, whose snapshot may not show a more urgent job; nobody waits for the end's guard
		if c, g := s.rows[live(j)], m.subject(j); t.p.op == End && c.kind() == pending && g >= 0 && now.outranked(g, c) {
			s.late |= bit(g)
		}
	})
	if t.p.op == Promote || t.p.op == Approve || t.p.op == Again {
		s.freed |= t.p.locked
	}
	for j := range m.Jobs {
		if s.rows[live(j)]|s.rows[parked(j)]|s.rows[done(j)] != 0 {
			s.exists |= bit(j)
		}
		if i >= podA && has(t.p.jobs, j) && t.p.op != Admit && t.p.op != Yield { // the pod learns which claims it holds
			t.p.known[j] = 0
			if c := s.rows[live(j)]; c.running() && c.owner() == i {
				t.p.known[j] = uint8(c.fence())
			}
		}
	}
	if !m.Slow && (m.Omits == None || m.Omits != t.p.op) {
		t.p.owed |= t.p.after
	}
	s.finish(i)
}

// readBack ends a statement whose reply was lost. The process reads which claims it holds. It owes admit and yield for all subjects of a submission,
// an end, or an admission. After a lost reply to another statement, only the net admits the subject.
func (m *Scenario) readBack(s *State, i int, p *process) {
	s.proc[i].owed = p.owed
	if !m.planted(NoAdmissionAfterUnknown) {
		s.proc[i].owed |= m.repeats(p)
	}
}

// repeats returns the debts of a process after a statement with an unknown outcome.
func (m *Scenario) repeats(p *process) uint8 {
	var subjects uint8
	switch {
	case p.op == Yield || p.op == Admit:
		return both(p.jobs)
	case (p.op == Submit || p.op == End) && !m.Slow:
		for j, job := range m.Jobs {
			if has(p.jobs, j) {
				subjects |= 1 << job.Subject >> 1
				if job.Next > 0 {
					subjects |= 1 << m.Jobs[job.Next].Subject >> 1
				}
			}
		}
	}
	return both(subjects)
}
