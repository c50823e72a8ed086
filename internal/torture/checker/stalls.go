package checker

import (
	"time"

	"github.com/trapeze-run/trapeze/internal/torture/history"
)

// stallFrom is how long a look or a small commit of the sampler's own takes when the machine is in trouble: it may be
// other programs that keep its disk or its processors busy, which is no fault of whoever is judged. Less is within the
// slack of every judgement.
const stallFrom = time.Second

// stallsOf finds when the machine itself was slow: looks and commits that took long, and looks that failed.
func stallsOf(run *history.Run) (list []span) {
	var last time.Time
	for _, s := range run.Samples {
		if !last.IsZero() && s.T.Sub(last) >= stallFrom {
			list = append(list, span{last, s.T})
		}
		last = s.T
		if s.Took >= stallFrom {
			list = append(list, span{s.T, s.T.Add(s.Took)})
		}
		if c := s.Commit; c != nil && c.Took >= stallFrom {
			list = append(list, span{c.T, c.T.Add(c.Took)})
		}
	}
	return list
}
