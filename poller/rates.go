package poller

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// takeStarts takes starts for a claim in lanes that have a rate. It lowers the numbers of jobs to claim to the numbers of starts, and releases the slots
// beyond them. Where starts are lacking, it schedules a claim for the time of the next one. It returns the starts by lane, and the claim's lanes
// without those for which there is none.
func (p *Poller) takeStarts(ctx context.Context, wants []store.Want) (map[string]int, []store.Want, error) {
	rated := slices.DeleteFunc(slices.Clone(wants), func(w store.Want) bool { return !p.Lanes.Rated(w.Lane) })
	if len(rated) == 0 {
		return nil, wants, nil
	}
	asking, cancel := routine.Linger(ctx, time.Second)
	defer cancel()
	starts, err := store.TakeStarts(asking, p.Store, rated)
	if err != nil { // if the reply was lost, the starts are spent
		for _, w := range wants {
			p.Lanes.Release(w.Lane, w.N)
		}
		return nil, nil, err
	}
	taken := map[string]int{}
	for i := range wants {
		w := &wants[i]
		s, ok := starts[w.Lane]
		if !ok {
			continue // no rate any more
		}
		taken[w.Lane] = s.N
		if p.Lanes.Release(w.Lane, w.N-s.N); s.N < w.N {
			wait := s.Next
			if s.N == 0 { // another pod takes the starts, and this one only stands by
				wait += time.Duration(rand.Int64N(int64(max(wait, time.Second)))) // #nosec G404 -- jitter
			}
			time.AfterFunc(max(wait, time.Millisecond), p.Wake)
		}
		w.N = s.N
	}
	return taken, slices.DeleteFunc(wants, func(w store.Want) bool { return w.N == 0 }), nil
}

// giveStarts gives back the starts that a claim did not need.
func (p *Poller) giveStarts(ctx context.Context, taken map[string]int, found store.Claims) {
	unused := map[string]int{}
	for lane, n := range taken {
		if n -= found.In(lane); n > 0 {
			unused[lane] = n
		}
	}
	if len(unused) == 0 {
		return
	}
	asking, cancel := routine.Linger(ctx, time.Second)
	defer cancel()
	if err := store.GiveStarts(asking, p.Store, unused); err != nil {
		p.Damped.Warn(ctx, startsLost, telemetry.Err, p.DBError(err)) // they are spent
	}
}
