package slots

import (
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

// sweep reads a lane in pages. It starts when a claim has met too many unclaimable jobs: jobs of busy subjects, or of kinds that this pod
// does not run. Each further claim reads the next page, from the position that the previous claim reached, and takes the jobs that it can.
// As long as slots are free, the next claim follows immediately. A sweep that has read the lane to its end sets the mark.
//
// Every second claim instead reads the jobs that became ready since the sweep began, so that a more urgent job does not have to wait until
// the sweep reaches it. As long as the sweep finds only blocked jobs, new jobs of the same rank do not have to wait either. After a page
// with claimable jobs, however, more old jobs may follow, and they start before new jobs of the same rank.
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

// outdated reports whether the sweep must start over, because jobs behind its position may have waited for longer than a mark may hide
// them. This happens if the sweep keeps finding work, or if no slot was free to continue it. Because the limit is the same as for marks,
// repeated reads of the same rows take up at most a thirtieth of the time.
func (s *sweep) outdated() bool {
	if s == nil {
		return false
	}
	return !s.blocked && time.Since(s.began) > markSpan(s.passed, s.most) || time.Since(s.latest) > s.most
}

// continuedBy reports whether a claim read the sweep's next page. It returns false if another remote worker that shares the marks has
// already read that page.
func (s *sweep) continuedBy(w store.Want) bool {
	return w.After != nil && w.After.ID == s.after.ID && w.After.Rank == s.after.Rank && w.After.ReadyAt.Equal(s.after.ReadyAt)
}

// read records how far into its page a claim got, and reports whether that page was the last. A claim that found enough jobs got only as
// far as the last job that it took.
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
