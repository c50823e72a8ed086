package runner

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
)

// round is one look at all lanes. With fewer free slots than lanes it takes several claims, so that a job in one lane need not wait
// for a poll because others were asked first. Only the poller's goroutine touches it.
type round struct {
	since time.Time
	tick  bool // nothing has happened that calls for a look: lanes whose own interval is not over yet are left out
	open  bool // lanes are left to be asked
	asked int
}

// settleSlots asks for slots of limited lanes and gives back what others wait for, before a claim. Call it in the poller's
// goroutine: answers must come in the order of their questions.
func (r *engine) settleSlots(ctx context.Context) error {
	asks, later := r.lanes.Asks(r.heard.Swap(false), time.Now())
	if later > 0 && !r.asksAgain.Swap(true) {
		// What has come since the answer was no is claimed by nobody's look but this: see TestAJobOfALimitedLaneThatComesRightAfter….
		time.AfterFunc(later, func() {
			r.asksAgain.Store(false)
			r.wake()
		})
	}
	if len(asks) == 0 {
		return nil
	}
	asking, cancel := wait.Linger(ctx, time.Second)
	defer cancel()
	boot := r.boot()
	answers, err := store.SettleSlots(asking, r.store, boot, asks, r.mineAll)
	if err != nil {
		return err // what came of it is read by asking again
	}
	if r.lanes.Settle(asks, answers, time.Now(), func() bool { return r.boot() == boot }) {
		r.wakePeers()
	}
	return nil
}

// returnSlots gives back what a pod that stops does not use any more, until ctx ends. Call it when the poller has ended.
func (r *engine) returnSlots(ctx context.Context) {
	r.lanes.Close()
	for ok := true; ok; ok = wait.For(ctx, r.opts.HeartbeatEvery) {
		_ = r.settleSlots(ctx) // what is left is taken back when the pod has left
	}
}

// mark looks where claims may begin.
func (r *engine) mark(ctx context.Context) {
	since, due := r.marks.Look(r.lanes.Names())
	if !due {
		return
	}
	found, took, err := r.store.Marks(ctx, since, r.mineAll)
	if err != nil {
		r.log.DebugContext(ctx, "no marks", telemetry.Err, r.dbError(err)) // claims are slower without
		return
	}
	most, again := r.member.MarkLimit()
	r.marks.Apply(found, since, took, most, again)
}
