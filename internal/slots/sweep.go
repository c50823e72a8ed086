package slots

import (
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

// sweep reads a lane in pages when a claim has met more unclaimable jobs than it may read: jobs of busy subjects, or of kinds that
// this pod does not run. Each claim reads the next page after the position that the previous one reached, and takes the jobs that it
// can. While slots are free, claims continue at once. When the sweep has read the lane to its end, it sets the mark.
//
// Every other claim instead reads the jobs that became ready since the sweep began, rank by rank, so that a more urgent job does not
// wait until the sweep reaches it. A new job of the same rank does not wait either while the sweep reads only blocked jobs. Once a
// page has jobs to run, older jobs may follow it, and these start first.
type sweep struct {
	floor   time.Time          // skips the jobs that became ready before, as the mark at its beginning does; zero: it reads everything
	after   store.LanePosition // the last row read
	fresh   time.Time          // the database's now when it began, less a margin for submissions in flight
	began   time.Time
	latest  time.Time     // when a page was last read
	passed  time.Duration // server time of claims that were not filled
	blocked bool          // the last page did not fill its claim
	barren  bool          // the last page had no job to run
	readNew bool          // the next claim reads the jobs that became ready since
	most    time.Duration // the longest validity of its mark
}

// beginSweep begins a sweep at the position where a claim stopped.
func beginSweep(w store.Want, found store.Claims, most time.Duration) *sweep {
	reached, now := found.Reached[w.Lane], time.Now()
	return &sweep{floor: w.Since, after: *reached.Last, fresh: reached.Fresh, began: now, latest: now, passed: found.Took, blocked: true,
		barren: !found.Some(w.Lane), most: most}
}

// next sets where the next claim begins.
func (s *sweep) next(w *store.Want) {
	if s.readNew = !s.readNew; s.readNew {
		after := s.after
		w.Since, w.After = s.floor, &after
		return
	}
	w.Since = s.fresh
	if !s.barren {
		rank := s.after.Rank
		w.Above = &rank
	}
}

// outdated reports whether jobs may have waited before its position for longer than marks may hide them: because the sweep finds
// work, or because no slot was free to continue it. The limit is the same as for marks, so that reading the same rows again takes a
// thirtieth of the time.
func (s *sweep) outdated() bool {
	if s == nil {
		return false
	}
	return !s.blocked && time.Since(s.began) > markSpan(s.passed, s.most) || time.Since(s.latest) > s.most
}

// continuedBy reports whether a claim read the next page. Another remote worker with the same marks may have read it before.
func (s *sweep) continuedBy(w store.Want) bool {
	return w.After != nil && w.After.ID == s.after.ID && w.After.Rank == s.after.Rank && w.After.ReadyAt.Equal(s.after.ReadyAt)
}

// read records how far a claim read its page, and reports whether that was the last one. A filled claim read as far as the last job
// that it took.
func (s *sweep) read(lane string, found store.Claims) (ended bool) {
	reached, short := found.Reached[lane]
	s.blocked, s.barren, s.latest = short, !found.Some(lane), time.Now()
	if !short {
		for _, c := range found.Jobs {
			if at := c.Position(); c.Lane == lane && at.Behind(s.after) {
				s.after = at
			}
		}
		return false
	}
	s.passed += found.Took
	if reached.Last == nil {
		return true
	}
	s.after = *reached.Last
	return false
}
