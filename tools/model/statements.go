package model

// A statement locks the rows of its jobs (lock), inserts the guards that it has requested, and writes (write). lock returns wait if it must wait
// for another transaction; restart if a row has moved to another table; nothing if there is nothing to do.

type verdict uint8

const (
	ready verdict = iota
	wait
	restart
	nothing
)

func (t tx) lock() verdict {
	switch t.p.op {
	case Submit, SubmitTx:
		t.p.locked = t.p.jobs
	case Claim:
		t.p.jobs = t.mostUrgent()
	case Recover:
		t.p.jobs = 1<<len(t.m.Jobs) - 1
	case Yield, Admit:
		for s := range maxSubjects {
			if has(t.p.jobs, s) && t.p.op == Yield {
				t.lockHolder(s)
			} else if has(t.p.jobs, s) {
				t.lockFirst(s)
			}
		}
	case Lane:
		if t.busy(laneRow) {
			return wait
		}
		t.latest(laneRow)
		return ready
	}
	if t.p.locked == 0 && t.p.op != Yield && t.p.op != Admit {
		if v := t.lockJobs(); v != ready {
			return v
		}
		t.each(t.lockHeir)
	}
	t.each(t.request)
	if t.p.locked == 0 {
		return nothing
	}
	return ready
}

// lockJobs locks the rows that the snapshot shows of the statement's jobs, and checks their latest versions. Operators and a hand-back wait for a
// locked row.
func (t tx) lockJobs() verdict {
	skips := t.p.op == Claim || t.p.op == End || t.p.op == Promote || t.p.op == Recover || t.p.op == Move || t.p.op == Prune
	for j := range t.m.Jobs {
		r := t.home(j)
		switch {
		case !has(t.p.jobs, j) || t.p.snap[r] == 0 || t.busy(r) && skips || t.p.op == Recover && !t.may(j, r, t.p.snap[r]):
		case t.busy(r):
			return wait
		default:
			if c := t.latest(r); t.may(j, r, c) {
				t.p.locked |= bit(j)
			} else if c == 0 && !skips {
				return restart
			}
		}
	}
	return ready
}

// home returns the row that contains a job in the snapshot.
func (t tx) home(j int) row {
	for _, r := range []row{live(j), parked(j)} {
		if t.p.snap[r] != 0 {
			return r
		}
	}
	return done(j)
}

// may is the condition of the statement on the row r of job j with the content c.
func (t tx) may(j int, r row, c cell) bool {
	open, running := c != 0 && r != done(j), r == live(j) && c.running()
	switch t.p.op {
	case Claim:
		return r == live(j) && c.kind() == pending && c.lane() == t.p.snap[r].lane()
	case End, HandBack:
		return running && c.owner() == t.i && uint8(c.fence()) == t.p.known[j] && !(t.p.op == HandBack && c.requested())
	case Recover:
		return running && c.owner() == podA
	case Promote:
		return r == parked(j) && (c.kind() == scheduled || c.kind() == retrying)
	case Approve:
		return r == parked(j) && c.kind() == approval
	case Cancel, Stop:
		return open && !(t.p.op == Cancel && running && c.requested())
	case Priority, Move:
		return open && !running
	}
	return r == done(j) && c.kind() == ended // retry and prune
}

// each calls visit with the jobs that the statement has locked.
func (t tx) each(visit func(j int)) {
	for j := range t.m.Jobs {
		if has(t.p.locked, j) {
			visit(j)
		}
	}
}

// open reports whether the snapshot shows that a job's lane is open.
func (t tx) open(c cell) bool { return c.lane() == 0 || t.p.snap[laneRow] == laneOpen }

// mostUrgent returns the pending job that a claim chooses.
func (t tx) mostUrgent() (found uint8) {
	best := cell(0)
	for j := range t.m.Jobs {
		c := t.p.snap[live(j)]
		if c.kind() == pending && t.open(c) && !t.busy(live(j)) && (best == 0 || c.priority() > best.priority()) {
			best, found = c, bit(j)
		}
	}
	return found
}

// waiting calls visit with the jobs that the snapshot shows as parked for their subject s.
func (t tx) waiting(s int, visit func(k int, c cell)) {
	for k := range t.m.Jobs {
		if c := t.p.snap[parked(k)]; t.m.subject(k) == s && c.kind() == subject {
			visit(k, c)
		}
	}
}

// outranked reports whether the snapshot shows a parked job in an open lane that should run before the pending job in row c.
func (t tx) outranked(s int, c cell) (yes bool) {
	t.waiting(s, func(_ int, k cell) { yes = yes || t.open(k) && (!t.open(c) || k.priority() > c.priority()) })
	return yes
}

// lockHolder locks the pending job that holds a subject's guard, SKIP LOCKED, if another job should run first.
func (t tx) lockHolder(s int) {
	if h := int(t.p.snap[guard(s)]) - 1; h >= 0 && t.yields(s, t.p.snap[live(h)]) && !t.busy(live(h)) && t.yields(s, t.latest(live(h))) {
		t.p.locked |= bit(h)
	}
}

func (t tx) yields(s int, holder cell) bool {
	return holder.kind() == pending && t.outranked(s, holder)
}

// lockFirst locks the first parked job of a free subject.
func (t tx) lockFirst(s int) {
	if t.p.snap[guard(s)] == 0 {
		t.lockParked(s)
	}
}

// lockHeir locks the first parked job of the subject of a job that ends, unless the job's next step takes over the guard.
func (t tx) lockHeir(j int) {
	s, n := t.m.subject(j), t.next(j)
	if t.p.op == End && s >= 0 && !t.heir(j) && !t.retries(j) && !(n >= 0 && t.handed(j, n) && t.first(s, t.m.Jobs[n].Priority+1)) {
		t.lockParked(s)
	}
}

// heir reports whether an end has locked a job in order to make it pending.
func (t tx) heir(j int) bool { return t.p.op == End && t.home(j) == parked(j) }

// hasHeir reports whether an end has locked a job of the subject in order to make it pending.
func (t tx) hasHeir(s int) (yes bool) {
	t.each(func(k int) { yes = yes || t.heir(k) && t.m.subject(k) == s })
	return yes
}

// lockParked locks the first parked job of a subject: jobs in open lanes come first, then the more urgent ones. If it is locked, nothing is
// locked instead.
func (t tx) lockParked(s int) {
	best := -1
	t.waiting(s, func(k int, c cell) {
		if t.busy(parked(k)) && t.m.planted(SkipLocked) {
			return
		}
		if b := t.p.snap[parked(max(best, 0))]; best < 0 || t.open(c) && !t.open(b) || t.open(c) == t.open(b) && c.priority() > b.priority() {
			best = k
		}
	})
	if best >= 0 && !t.busy(parked(best)) && t.latest(parked(best)).kind() == subject {
		t.p.locked |= bit(best)
	}
}

// request requests the guard for a job that the statement may make pending, and for the next step of a job, if the snapshot shows that the guard is
// free and that no parked job comes first. A statement inserts the guards that it has requested in key order, with ON CONFLICT DO NOTHING.
func (t tx) request(j int) {
	switch t.p.op {
	case Admit:
		if !t.m.planted(NoGuard) {
			t.p.want[t.m.subject(j)] = uint8(j + 1)
		}
	case Promote:
		t.take(j, t.p.snap[parked(j)].priority())
	case Submit:
		t.take(j, t.m.Jobs[j].Priority)
	case SubmitTx:
		if t.m.planted(CallerTakesGuard) {
			t.take(j, t.m.Jobs[j].Priority)
		}
	case End:
		if t.heir(j) {
			return
		}
		if t.m.planted(FreeFirst) && t.m.subject(j) >= 0 {
			t.put(guard(t.m.subject(j)), 0)
		}
		if n := t.next(j); n >= 0 && !t.handed(j, n) {
			t.take(n, t.m.Jobs[n].Priority+1)
		}
	}
}

func (t tx) take(j, priority int) {
	s := t.m.subject(j)
	if s < 0 || t.p.op != Promote && t.m.Jobs[j].Wait != 0 || !t.first(s, priority) || t.p.snap[guard(s)] != 0 && !t.m.planted(BlindInsert) {
		return
	}
	if w := int(t.p.want[s]); w == 0 || t.m.Jobs[j].Priority > t.m.Jobs[w-1].Priority {
		t.p.want[s] = uint8(j + 1)
	}
}

// first reports whether the snapshot shows no parked job of the subject with at least the given priority.
func (t tx) first(s, priority int) bool {
	first := true
	t.waiting(s, func(_ int, c cell) { first = first && c.priority() < priority })
	return first || t.m.planted(PlaceAhead)
}

// next returns the step that follows a job, or -1.
func (t tx) next(j int) int {
	c := t.s.rows[live(j)]
	if n := t.m.Jobs[j].Next; t.p.op == End && n > 0 && !has(t.s.exists, n) && !t.retries(j) && !c.requested() {
		return n
	}
	return -1
}

// handed reports whether the next step n of job j has the same subject.
func (t tx) handed(j, n int) bool { return t.m.subject(n) >= 0 && t.m.subject(n) == t.m.subject(j) }

// retries reports whether the job's handler wants a retry: it does in the job's first attempt.
func (t tx) retries(j int) bool {
	c := t.s.rows[live(j)]
	return t.p.op == End && t.m.Jobs[j].Retries && c.fence() == 1 && !c.requested()
}

// write writes the statement's changes to job j, which it has locked.
func (t tx) write(j int) {
	r, s := t.home(j), t.m.subject(j)
	c := t.s.rows[r]
	running := r == live(j) && c.running()
	if t.heir(j) {
		t.put(r, 0)
		t.put(live(j), c.as(pending))
		t.put(guard(s), cell(j+1))
		return
	}
	switch t.p.op {
	case Submit, SubmitTx:
		t.insert(j, false)
	case Claim:
		t.put(r, c.as(runningA+t.i-podA)+1<<3)
	case Yield:
		t.put(r, 0)
		t.put(parked(j), c.as(subject))
		if !t.m.planted(YieldKeepsGuard) {
			t.put(guard(s), 0)
		}
		t.owe(j, true)
	case Admit:
		if has(t.p.got, s) || t.m.planted(NoGuard) {
			t.put(r, 0)
			t.put(live(j), c.as(pending))
			return
		}
		if t.m.planted(DeleteFirst) {
			t.put(r, 0)
		}
		t.owe(j, !t.m.planted(AgainWithoutYield))
	case Promote: // the row is replaced, so that a late promotion does not lock it without knowing
		t.put(r, 0)
		t.place(j, c, t.taken(j))
		if !t.m.planted(SilentLock) {
			t.s.wrote[r] = 2
		}
	case Approve:
		t.put(r, c.as(scheduled))
	case Again:
		t.put(r, 0)
		t.put(parked(j), c.as(scheduled))
	case Prune:
		t.put(r, c.as(pruned))
	case Priority, Move:
		change := cell(1 << 6)
		if t.p.op == Priority {
			change = 1 << 7
		}
		t.put(r, c^change)
		if t.p.op == Priority && r == live(j) {
			t.s.wrote[r] = 2 // the row is replaced
		}
		t.owe(j, true)
	case HandBack:
		t.put(r, c.as(pending))
		t.owe(j, true)
	default: // end, cancel, stop, recover
		switch {
		case t.p.op == Cancel && running:
			t.put(r, c.as(c.kind()+cancelled))
			return
		case t.p.op == Recover && !c.requested() && c.fence() < 2: // otherwise, it has crashed too often
			t.put(r, c.as(pending))
			if s >= 0 && t.m.planted(RecoveryFrees) {
				t.put(guard(s), 0)
			}
			return
		case t.retries(j):
			t.put(parked(j), c.as(retrying))
		default:
			t.put(done(j), c.as(ended))
		}
		t.put(r, 0)
		if s < 0 || !t.hasHeir(s) {
			t.owe(j, false)
		}
		if r == live(j) && s >= 0 && !t.hasHeir(s) && !(t.p.op == Cancel && t.m.planted(CancelKeepsGuard)) {
			t.put(guard(s), 0)
		}
		if n := t.next(j); n >= 0 {
			t.insert(n, t.handed(j, n) && t.first(s, t.m.Jobs[n].Priority+1))
			t.owe(n, true)
		}
	}
}

// insert inserts a new job. With handed, it gets the guard of the job before it.
func (t tx) insert(j int, handed bool) {
	c := t.m.new(j)
	switch {
	case t.m.Jobs[j].Wait != 0:
		t.put(parked(j), c.as(t.m.Jobs[j].Wait))
	case t.p.op == SubmitTx && !t.taken(j):
		t.put(parked(j), c.as(scheduled))
	default:
		t.place(j, c, handed || t.taken(j))
		if handed {
			t.put(guard(t.m.subject(j)), cell(j+1))
		}
	}
}

// taken reports whether the statement has inserted the guard of the job, or the job needs none.
func (t tx) taken(j int) bool {
	s := t.m.subject(j)
	return s < 0 || has(t.p.got, s) && int(t.p.want[s]) == j+1
}

// place inserts a job that nothing but its subject keeps from running.
func (t tx) place(j int, c cell, taken bool) {
	if taken {
		t.put(live(j), c.as(pending))
		return
	}
	t.put(parked(j), c.as(subject))
	t.owe(j, true)
}

// owe notes that the process must run admit for the job's subject after its commit and, if a job was parked, yield.
func (t tx) owe(j int, parked bool) {
	if s := t.m.subject(j); s >= 0 && parked {
		t.p.after |= both(bit(s))
	} else if s >= 0 {
		t.p.after |= bit(s)
	}
}
