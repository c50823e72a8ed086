package slots

import (
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

// sweep reads a lane in pages. It starts when a claim has met more unclaimable jobs than it may read. These are jobs of busy subjects, or
// of kinds that this pod does not run. Each claim reads the next page, starting after the position that the previous claim reached, and
// takes the jobs that it can. As long as slots are free, the next claim follows immediately. A sweep that has read the lane to its end sets
// the mark.
//
// Every second claim instead reads the jobs that became ready since the sweep began, rank by rank. This way, a more urgent job does not
// wait until the sweep reaches it. New jobs of the same rank do not wait either, as long as the sweep finds only blocked jobs. After a page
// with claimable jobs, more old jobs may follow, and these start before new jobs of the same rank.
type sweep struct {
	floor   time.Time          // jobs that became ready earlier are skipped; zero to read everything
	after   store.LanePosition // the last row read
	fresh   time.Time          // the database's now() when the sweep began, minus a margin for submissions in flight
	began   time.Time
	latest  time.Time     // when a page was last read
	passed  time.Duration // server time of the claims that were not filled
	blocked bool          // the last page did not fill its claim
	barren  bool          // the last page had no claimable job
	readNew bool          // the next claim reads the jobs that became ready since the sweep began
	most    time.Duration // maximum validity of the resulting mark
}

// beginSweep starts a sweep at the position where a claim stopped.
func beginSweep(w store.Want, found store.Claims, most time.Duration) *sweep {
	reached, now := found.Reached[w.Lane], time.Now()
	return &sweep{floor: w.Since, after: *reached.Last, fresh: reached.Fresh, began: now, latest: now, passed: found.Took, blocked: true,
		barren: !found.Some(w.Lane), most: most}
}

// next sets where the next claim starts reading.
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

// outdated reports whether the sweep must start again, because jobs behind its position may have waited longer than a mark may hide them.
// This happens if the sweep keeps finding work, or if no slot was free to continue it. The limit is the same as for marks, so repeated
// reads of the same rows take at most a thirtieth of the time.
func (s *sweep) outdated() bool {
	if s == nil {
		return false
	}
	return !s.blocked && time.Since(s.began) > markSpan(s.passed, s.most) || time.Since(s.latest) > s.most
}

// continuedBy reports whether a claim read the next page of the sweep. It returns false if another remote worker with the same marks has
// already read that page.
func (s *sweep) continuedBy(w store.Want) bool {
	return w.After != nil && w.After.ID == s.after.ID && w.After.Rank == s.after.Rank && w.After.ReadyAt.Equal(s.after.ReadyAt)
}

// read records how far a claim has read its page, and reports whether that page was the last one. A claim that found enough jobs has read
// as far as the last job that it took.
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
