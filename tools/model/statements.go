package model

// A statement locks rows in lock and, when it has inserted the guards that it wants, writes rows in write. lock returns wait if it must wait
// for another transaction; restart if a row moved to another table and the statement must be sent again; nothing if there is nothing to do.
type statement struct {
	lock  func(tx) verdict
	write func(tx)
}

type verdict uint8

const (
	ready verdict = iota
	wait
	restart
	nothing
)

var statements = [...]statement{
	Submit:   {lockSubmit, writeSubmit},
	SubmitTx: {lockSubmit, writeSubmit},
	Claim:    {lockClaim, writeClaim},
	End:      {lockEnd, writeEnd},
	Admit:    {lockAdmit, writeAdmit},
	Promote:  {lockDue, writeDue},
	Approve:  {lockDue, writeDue},
	Cancel:   {lockCancel, writeEnd},
	Priority: {lockWaiting, writeWaiting},
	Move:     {lockWaiting, writeWaiting},
	Lane:     {lockLane, writeLane},
	Recover:  {lockRecover, writeEnd},
	HandBack: {lockHandBack, writeHandBack},
	Again:    {lockDone, writeAgain},
	Prune:    {lockDone, writePrune},
}

// Fragments that the statements share.

// ask requests the guard for a job, if the snapshot shows that the guard is free. A statement inserts the
// guards that it has requested in key order, with ON CONFLICT DO NOTHING. It never tries to insert a guard that its snapshot shows.
func (t tx) ask(j int, c cell) {
	s := t.m.subject(j)
	blind := t.m.planted(BlindInsert) && t.p.op == End
	if s < 0 || t.p.snap[guard(s)] != 0 && !blind {
		return
	}
	if w := int(t.p.want[s]); w == 0 || c.priority() > t.m.Jobs[w-1].Priority {
		t.p.want[s] = uint8(j + 1)
	}
}

// open reports whether the snapshot shows that a job's lane is open.
func (t tx) open(c cell) bool { return c.lane() == 0 || t.p.snap[laneRow] == laneOpen }

// place inserts a job that nothing but its subject keeps from running: in live if the statement has its guard, otherwise in parked.
func (t tx) place(j int, c cell) {
	s := t.m.subject(j)
	switch {
	case s < 0, has(t.p.got, s) && int(t.p.want[s]) == j+1, int(t.p.heir[s]) == j+1:
		t.put(live(j), c.as(pending))
	default:
		t.put(parked(j), c.as(subject))
		if !has(t.p.free, s) || t.p.heir[s] == 0 {
			t.p.after |= bit(s) // rule 3
		}
	}
}

// before reports whether a job goes before another one of its subject: jobs of open lanes first, then the more urgent ones.
func (t tx) before(a, b cell) bool {
	if t.open(a) != t.open(b) {
		return t.open(a)
	}
	return a.priority() > b.priority()
}

// pick locks the first of a subject's parked jobs, SKIP LOCKED, and returns it, or -1.
func (t tx) pick(s int) int {
	var skip uint8
	for {
		best := -1
		for j := range t.m.Jobs {
			c := t.p.snap[parked(j)]
			if has(skip, j) || t.m.subject(j) != s || c.kind() != subject || t.busy(parked(j)) {
				continue
			}
			if best < 0 || t.before(c, t.p.snap[parked(best)]) {
				best = j
			}
		}
		if best < 0 || t.latest(parked(best)).kind() == subject {
			return best
		}
		skip |= bit(best)
	}
}

// release gives up the guard of a job that leaves live: to the first parked job of its subject or, if that does not go before it, to the
// job's next step. If there is neither, the guard is deleted, and an admission follows the commit.
func (t tx) release(j, next int) {
	s := t.m.subject(j)
	if s < 0 {
		return
	}
	t.p.free |= bit(s)
	heir := -1
	if !t.m.planted(OmittedAdmission) && !t.m.Slow {
		heir = t.pick(s)
	}
	if next >= 0 && t.m.subject(next) == s && t.m.Jobs[next].Wait == 0 &&
		(heir < 0 || !t.before(t.s.rows[parked(heir)], t.m.first(next))) {
		heir = next
	}
	t.p.heir[s] = uint8(heir + 1)
	if t.m.planted(ReleaseFirst) {
		t.put(guard(s), cell(heir+1))
	}
}

// submit and submit in the caller's transaction: insert the job. A job with a subject is pending if the statement could insert its guard.
// In the caller's transaction, it is always parked: another transaction would wait for the caller.

func lockSubmit(t tx) verdict {
	if t.p.op == SubmitTx && !t.m.planted(CallerTakesGuard) {
		return ready
	}
	for j := range t.m.Jobs {
		if has(t.p.jobs, j) && t.m.Jobs[j].Wait == 0 {
			t.ask(j, t.m.first(j))
		}
	}
	return ready
}

func writeSubmit(t tx) {
	for j := range t.m.Jobs {
		if has(t.p.jobs, j) {
			t.insert(j)
		}
	}
}

// insert inserts a new job.
func (t tx) insert(j int) {
	if w := t.m.Jobs[j].Wait; w != 0 {
		t.put(parked(j), t.m.first(j).as(w))
		return
	}
	t.place(j, t.m.first(j))
}

// claim: lock the most urgent pending job in an open lane, SKIP LOCKED, and make it running. The guard does not change.

func lockClaim(t tx) verdict {
	best := -1
	for j := range t.m.Jobs {
		c := t.p.snap[live(j)]
		if c.kind() == pending && t.open(c) && !t.busy(live(j)) && (best < 0 || c.priority() > t.p.snap[live(best)].priority()) {
			best = j
		}
	}
	if best < 0 {
		return nothing
	}
	if c := t.latest(live(best)); c.kind() != pending || c.lane() != t.p.snap[live(best)].lane() {
		return nothing
	}
	t.p.jobs, t.p.locked = bit(best), bit(best)
	return ready
}

func writeClaim(t tx) {
	for j := range t.m.Jobs {
		if has(t.p.locked, j) {
			c := t.s.rows[live(j)]
			t.put(live(j), c.as(runningA+t.i-podA)+1<<3)
		}
	}
}

// end, with a next step or a retry: delete the jobs from live, insert them into done or parked, hand their guards over, and insert the next
// steps. The guards of next steps are inserted before the jobs' own guards are written, so that no transaction waits for a guard while it
// holds one that comes later.

func lockEnd(t tx) verdict {
	for j := range t.m.Jobs {
		if !has(t.p.jobs, j) || t.busy(live(j)) {
			continue
		}
		if c := t.latest(live(j)); c.running() && c.owner() == t.i && uint8(c.fence()) == t.p.known[j] {
			t.p.locked |= bit(j)
		}
	}
	for j := range t.m.Jobs {
		if has(t.p.locked, j) {
			n := t.next(j)
			t.release(j, n)
			if n >= 0 && t.m.subject(n) != t.m.subject(j) && t.m.Jobs[n].Wait == 0 {
				t.ask(n, t.m.first(n))
			}
		}
	}
	if t.p.locked == 0 {
		return nothing
	}
	return ready
}

// retries reports whether the job's handler wants a retry: it does in the job's first attempt.
func (t tx) retries(j int) bool {
	c := t.s.rows[live(j)]
	return t.p.op == End && t.m.Jobs[j].Retries && c.fence() == 1 && !c.requested()
}

// next returns the step that follows a job, or -1.
func (t tx) next(j int) int {
	if n := t.m.Jobs[j].Next; t.p.op == End && n > 0 && !has(t.s.exists, n) && !t.retries(j) && !t.s.rows[live(j)].requested() {
		return n
	}
	return -1
}

func writeEnd(t tx) {
	for j := range t.m.Jobs {
		if !has(t.p.locked, j) {
			continue
		}
		c := t.s.rows[live(j)]
		n := t.next(j)
		switch {
		case t.p.op == Cancel && c == 0: // it was parked
			c = t.s.rows[parked(j)]
			t.put(parked(j), 0)
			t.put(done(j), c.as(ended))
			continue
		case t.p.op == Cancel && c.running():
			t.put(live(j), c.as(c.kind()+cancelled))
			continue
		case t.p.op == Recover && !recoveredEnds(c):
			t.put(live(j), c.as(pending)) // it keeps its guard
			continue
		case t.retries(j):
			t.put(parked(j), c.as(retrying))
		default:
			t.put(done(j), c.as(ended))
		}
		t.put(live(j), 0)
		if n >= 0 {
			t.insert(n)
		}
		s := t.m.subject(j)
		if s < 0 || t.p.op == Cancel && t.m.planted(CancelKeepsGuard) {
			continue
		}
		t.put(guard(s), cell(t.p.heir[s]))
		if h := int(t.p.heir[s]) - 1; h >= 0 && h != n {
			t.enter(h)
		} else if h < 0 && !t.m.planted(OmittedAdmission|NoSecondAdmission) {
			t.p.after |= bit(s) // rule 3
		}
	}
}

// enter moves a parked job, whose row is locked and whose guard is taken, to live.
func (t tx) enter(j int) {
	c := t.s.rows[parked(j)]
	t.put(parked(j), 0)
	t.put(live(j), c.as(pending))
}

// admit, for a set of subjects. If the guard is free in the snapshot: lock the first parked job, SKIP LOCKED, insert the guard, and admit the job
// only if the guard was inserted. If a pending job holds the guard: lock that job, SKIP LOCKED, then the first parked job, SKIP LOCKED. If the
// parked job's lane is open and it goes before the holder, they change places. Another admission follows if a job stays parked
// because its guard was not inserted.

func lockAdmit(t tx) verdict {
	for s := range maxSubjects {
		if !has(t.p.jobs, s) {
			continue
		}
		holder := cell(0)
		h := int(t.p.snap[guard(s)]) - 1
		if h >= 0 {
			if t.m.planted(NoSwap) || t.p.snap[live(h)].kind() != pending || t.busy(live(h)) || t.latest(live(h)).kind() != pending {
				continue
			}
			holder = t.s.rows[live(h)]
		}
		k := t.pick(s)
		switch {
		case k < 0:
		case h < 0:
			t.p.locked |= bit(k)
			t.p.want[s] = uint8(k + 1)
		case t.swaps(holder, t.s.rows[parked(k)]): // otherwise k stays parked; the holder cannot leave live before k is unlocked
			t.p.locked |= bit(k)
			t.p.heir[s] = uint8(k + 1)
		}
	}
	if t.p.locked == 0 {
		return nothing
	}
	if t.m.planted(NoGuard) {
		t.p.want = [maxSubjects]uint8{}
	}
	return ready
}

// swaps reports whether a parked job takes the guard from a pending one.
func (t tx) swaps(holder, k cell) bool { return t.open(k) && t.before(k, holder) }

func writeAdmit(t tx) {
	for k := range t.m.Jobs {
		if !has(t.p.locked, k) {
			continue
		}
		s := t.m.subject(k)
		switch h := int(t.s.rows[guard(s)]) - 1; {
		case t.p.heir[s] != 0:
			t.put(parked(h), t.s.rows[live(h)].as(subject))
			t.put(live(h), 0)
			t.put(guard(s), cell(k+1))
			t.enter(k)
		case has(t.p.got, s) || t.m.planted(NoGuard):
			t.enter(k)
		case t.m.planted(DeleteFirst):
			t.put(parked(k), 0)
		default:
			t.p.after |= bit(s) // rule 3
		}
	}
}

// promote and approve: lock a parked job whose time or approval has come (promote: SKIP LOCKED) and insert its guard. It moves to live, or
// is parked with the reason subject. That row replaces the old one: if it were updated in place, a late promotion would lock it, find that its
// condition no longer holds, and not know that it keeps the lock, so that an end and the admission after it would skip the row.

func lockDue(t tx) verdict {
	for j := range t.m.Jobs {
		if !has(t.p.jobs, j) {
			continue
		}
		if t.busy(parked(j)) {
			if t.p.op == Promote {
				return nothing
			}
			return wait
		}
		if k := t.latest(parked(j)).kind(); k == 0 || k == subject {
			return nothing
		}
		t.p.locked |= bit(j)
		t.ask(j, t.s.rows[parked(j)])
	}
	return ready
}

func writeDue(t tx) {
	for j := range t.m.Jobs {
		if has(t.p.locked, j) {
			c := t.s.rows[parked(j)]
			t.put(parked(j), 0)
			t.place(j, c)
			if !t.m.planted(SilentLock) {
				t.s.wrote[parked(j)] = 2
			}
		}
	}
}

// cancel: a parked job ends. A pending job ends and releases its guard, as in end. A running job is asked to stop, and keeps its guard.

func lockCancel(t tx) verdict {
	for j := range t.m.Jobs {
		if !has(t.p.jobs, j) {
			continue
		}
		r, v := t.lockOpen(j)
		if v != ready {
			return v
		}
		c := t.s.rows[r]
		if r == live(j) && c.requested() {
			return nothing
		}
		t.p.locked = bit(j)
		if r == live(j) && !c.running() && !t.m.planted(CancelKeepsGuard) {
			t.release(j, -1)
		}
	}
	return ready
}

// lockOpen locks the row of a job that has not ended, in live or parked.
func (t tx) lockOpen(j int) (row, verdict) {
	r := live(j)
	if t.p.snap[r] == 0 {
		r = parked(j)
	}
	switch {
	case t.p.snap[r] == 0:
		return r, nothing
	case t.busy(r):
		return r, wait
	case t.latest(r) == 0:
		return r, restart
	}
	return r, ready
}

// priority and move: a parked job keeps its reason. A pending job keeps its guard, and its row is replaced by a change of the priority.

func lockWaiting(t tx) verdict {
	for j := range t.m.Jobs {
		if has(t.p.jobs, j) {
			r, v := t.lockOpen(j)
			if v != ready {
				return v
			}
			if r == live(j) && t.s.rows[r].running() {
				return nothing
			}
			t.p.locked = bit(j)
		}
	}
	return ready
}

func writeWaiting(t tx) {
	for j := range t.m.Jobs {
		if !has(t.p.locked, j) {
			continue
		}
		change := cell(1 << 6)
		if t.p.op == Priority {
			change = 1 << 7
		}
		if c := t.s.rows[live(j)]; c != 0 {
			t.put(live(j), c^change)
			if t.p.op == Priority {
				t.s.wrote[live(j)] = 2
			}
			continue
		}
		c := t.s.rows[parked(j)] ^ change
		if t.p.op == Move && t.m.planted(MoveLosesReason) {
			t.put(parked(j), 0)
			t.put(live(j), c.as(pending))
			continue
		}
		t.put(parked(j), c)
		if c.kind() == subject {
			t.p.after |= bit(t.m.subject(j)) // rule 3
		}
	}
}

// open or close the lane.

func lockLane(t tx) verdict {
	if t.busy(laneRow) {
		return wait
	}
	t.latest(laneRow)
	return ready
}

func writeLane(t tx) {
	t.put(laneRow, t.s.rows[laneRow]^laneOpen^laneClosed)
}

// recover: the jobs of a closed pod become pending and keep their guards. A job with a cancel request, or with too many crashes, ends.

func recoveredEnds(c cell) bool { return c.requested() || c.fence() >= 2 }

func lockRecover(t tx) verdict {
	for j := range t.m.Jobs {
		if c := t.p.snap[live(j)]; !c.running() || c.owner() != podA || t.busy(live(j)) {
			continue
		}
		if c := t.latest(live(j)); c.running() && c.owner() == podA {
			t.p.locked |= bit(j)
			if recoveredEnds(c) {
				t.release(j, -1)
			}
		}
	}
	if t.p.locked == 0 {
		return nothing
	}
	return ready
}

// hand back: a running job becomes pending and keeps its guard.

func lockHandBack(t tx) verdict {
	for j := range t.m.Jobs {
		if !has(t.p.jobs, j) {
			continue
		}
		if t.busy(live(j)) {
			return wait
		}
		if c := t.latest(live(j)); c.kind() == runningA+t.i-podA && uint8(c.fence()) == t.p.known[j] {
			t.p.locked |= bit(j)
			return ready
		}
	}
	return nothing
}

func writeHandBack(t tx) {
	for j := range t.m.Jobs {
		if has(t.p.locked, j) {
			t.put(live(j), t.s.rows[live(j)].as(pending))
		}
	}
}

// retry by an operator, and retention: lock a job that has ended; place it as in submit, or delete it.

func lockDone(t tx) verdict {
	for j := range t.m.Jobs {
		if !has(t.p.jobs, j) {
			continue
		}
		if t.busy(done(j)) {
			if t.p.op == Prune {
				return nothing
			}
			return wait
		}
		if t.latest(done(j)).kind() != ended {
			return nothing
		}
		t.p.locked = bit(j)
		if t.p.op == Again {
			t.ask(j, t.s.rows[done(j)])
		}
	}
	return ready
}

func writeAgain(t tx) {
	for j := range t.m.Jobs {
		if has(t.p.locked, j) {
			c := t.s.rows[done(j)]
			t.put(done(j), 0)
			t.place(j, c)
		}
	}
}

func writePrune(t tx) {
	for j := range t.m.Jobs {
		if has(t.p.locked, j) {
			t.put(done(j), t.s.rows[done(j)].as(pruned))
		}
	}
}
