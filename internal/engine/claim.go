package engine

import (
	"github.com/trapeze-run/trapeze/internal/slots"

	"context"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/wait"
)

// freedSubjects are the subjects whose run has ended here: what waits for them is looked for by index.
type freedSubjects struct {
	mu   sync.Mutex
	keys map[store.Key]bool
}

func (f *freedSubjects) add(k store.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.keys == nil {
		f.keys = map[store.Key]bool{}
	}
	f.keys[k] = true
}

func (f *freedSubjects) take() []store.Key {
	f.mu.Lock()
	defer f.mu.Unlock()
	keys := make([]store.Key, 0, len(f.keys))
	for k := range f.keys {
		keys = append(keys, k)
	}
	clear(f.keys)
	return keys
}

// smallHouse is how many slots a pod has at most for which a claim waits until ends that are being written have freed theirs.
// In a larger one claims go on beside the ends: waiting costs a fifth of a drain with 100 slots.
const smallHouse = flushBeside

// wake asks for a look at everything that is due.
func (r *Engine) Wake() {
	r.look.Store(true)
	r.Poller.Wake()
}

// claim claims due jobs for every free slot and launches them. It reports whether another claim may find more at once.
//
// When all that happened is that runs of some subjects have ended here, and the next job of each could be claimed, nothing
// else is looked for: behind a hot subject each look passes by all of its jobs. look says that something else happened.
func (r *Engine) claim(ctx context.Context, look bool) (more bool, err error) {
	if len(r.HandledKinds) == 0 || r.Closing.Load() {
		return false, nil
	}
	keys := r.freed.take()
	tick := !look && len(keys) == 0 && !r.backlog.left()
	if len(keys) > 0 {
		all, err := r.claimSubjects(ctx, keys)
		if err != nil {
			for _, k := range keys {
				r.freed.add(k)
			}
			return false, err
		}
		if all && !look && !r.backlog.left() && time.Since(r.looked) < r.Lanes.Interval() {
			return false, nil
		}
	}
	r.looked = time.Now()
	if r.Slots() <= smallHouse {
		r.flusher.lands() // the slots that come free with it are filled by the same claim
	}
	if err := r.settleSlots(ctx); err != nil {
		return false, err
	}
	r.backlog.asks()
	if !r.round.open || look || len(keys) > 0 {
		r.round = round{since: time.Now(), tick: tick}
	}
	left := true // unless this look says otherwise
	defer func() {
		if r.backlog.told(left) {
			r.Wake()
		}
	}()
	wants, early, unasked := r.Lanes.Wants(r.round.since, r.round.tick)
	r.round.open = false
	r.round.asked += len(wants)
	if len(wants) == 0 {
		left = early == 0 || !r.Lanes.Covers(r.round.asked+early)
		return false, nil
	}
	reserved := map[string]int{}
	for i, w := range wants {
		reserved[w.Lane] = w.N
		r.Marks.ForClaim(&wants[i])
	}
	defer func() {
		for lane, n := range reserved {
			r.Lanes.Release(lane, n)
		}
	}()
	boot := r.Boot()
	_ = failpoint.Hit(failpoint.ClaimSend)
	// A claim that has been sent is waited for, also by a pod that is to stop, though then not for long.
	asking, cancel := wait.Linger(ctx, time.Second)
	defer cancel()
	found, err := r.Store.Claim(asking, boot, wants, r.HandledKinds, !r.Runs.isolated())
	if err != nil {
		if store.Unknown(err) {
			r.Doubt.Raise()
		}
		return false, err
	}
	r.LaunchClaims(boot, found, reserved)
	quick := !slots.Slow(found.Took, len(found.Jobs))
	most, wake := r.Member.MarkLimit()
	sweeping := r.Marks.Claimed(wants, found, quick, most, wake)
	if !quick && !sweeping {
		r.mark(ctx)
	}
	filled := false
	for _, w := range wants {
		filled = filled || reserved[w.Lane] == 0
	}
	left = filled || sweeping || found.Seen > len(found.Jobs) || !r.Lanes.Covers(r.round.asked+early)
	// More can be had at once when a lane's share was filled, some were passed by, or lanes not asked or not read to their end, and slots
	// are left.
	again := filled || sweeping || len(found.Jobs) > 0 && found.Seen > len(found.Jobs)
	if again || unasked == 0 {
		return again && r.Lanes.AnyFree(reserved), nil
	}
	r.round.open = r.Lanes.AnyFree(reserved)
	return r.round.open, nil
}

// launchClaims starts the handlers of what was claimed; the claim's commit is confirmed.
func (r *Engine) LaunchClaims(boot string, found store.Claims, reserved map[string]int) {
	_ = failpoint.Hit(failpoint.ClaimCommitted)
	r.Metrics.Claims.Add(float64(len(found.Jobs)))
	claims := make([]*Run, 0, len(found.Jobs))
	for _, c := range found.Jobs {
		if c.ReadyAt.Unix() > 0 {
			// A claim sees what was committed while it was planned, after its own now().
			wait := max(0, c.ClaimedAt.Sub(c.ReadyAt))
			r.Metrics.WaitSeconds.WithLabelValues(c.Lane).Observe(wait.Seconds())
		}
		one := r.NewRun(c, boot)
		if one == nil {
			r.Doubt.Raise()
			continue
		}
		claims = append(claims, one)
		reserved[c.Lane]--
		r.Lanes.Touch(c.Lane)
	}
	r.workers.Give(claims...)
}

// claimSubjects claims the next job of each subject whose run has just ended, one slot each. It reports whether there was one
// for each of them.
func (r *Engine) claimSubjects(ctx context.Context, keys []store.Key) (all bool, err error) {
	lanes := r.Lanes.Open()
	var asked []store.Key
	for _, k := range keys {
		if r.Handled[k.Kind] {
			asked = append(asked, k)
		}
	}
	if len(lanes) == 0 || len(asked) == 0 {
		return false, nil
	}
	// Which lanes the jobs are in is not known before: a slot of each lane that could be needed is reserved.
	reserved := map[string]int{}
	defer func() {
		for lane, n := range reserved {
			r.Lanes.Release(lane, n)
		}
	}()
	var open []string
	for _, lane := range lanes {
		for range asked {
			if !r.Lanes.Reserve(lane) {
				break
			}
			reserved[lane]++
		}
		if reserved[lane] > 0 {
			open = append(open, lane)
		}
	}
	least := len(asked)
	for _, lane := range open {
		least = min(least, reserved[lane])
	}
	if least == 0 {
		return false, nil
	}
	for _, k := range asked[least:] {
		r.freed.add(k) // the next sweep's
	}
	boot := r.Boot()
	asking, cancel := wait.Linger(ctx, time.Second)
	defer cancel()
	found, err := r.Store.ClaimSubjects(asking, boot, asked[:least], open)
	if err != nil {
		if store.Unknown(err) {
			r.Doubt.Raise()
		}
		return false, err
	}
	r.LaunchClaims(boot, found, reserved)
	return len(found.Jobs) == len(keys), nil
}

// slotFree looks for work when a slot of a lane has become free and a claim left some behind, or when the slot is another
// pod's.
func (r *Engine) slotFree(lane string) {
	if r.backlog.freed() || r.Lanes.Overdue(lane) {
		r.Wake()
	}
}
