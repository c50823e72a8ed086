package engine

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
func (r *Engine) settleSlots(ctx context.Context) error {
	asks, later := r.Lanes.Asks(r.heard.Swap(false), time.Now())
	if later > 0 && !r.asksAgain.Swap(true) {
		// What has come since the answer was no is claimed by nobody's look but this: see TestAJobOfALimitedLaneThatComesRightAfter….
		time.AfterFunc(later, func() {
			r.asksAgain.Store(false)
			r.Wake()
		})
	}
	if len(asks) == 0 {
		return nil
	}
	asking, cancel := wait.Linger(ctx, time.Second)
	defer cancel()
	boot := r.Boot()
	answers, err := store.SettleSlots(asking, r.Store, boot, asks, r.HandledKinds)
	if err != nil {
		return err // what came of it is read by asking again
	}
	if r.Lanes.Settle(asks, answers, time.Now(), func() bool { return r.Boot() == boot }) {
		r.WakePeers()
	}
	return nil
}

// returnSlots gives back what a pod that stops does not use any more, until ctx ends. Call it when the poller has ended.
func (r *Engine) returnSlots(ctx context.Context) {
	r.Lanes.Close()
	for ok := true; ok; ok = wait.For(ctx, r.Opts.HeartbeatEvery) {
		_ = r.settleSlots(ctx) // what is left is taken back when the pod has left
	}
}

// mark looks where claims may begin.
func (r *Engine) mark(ctx context.Context) {
	since, due := r.Marks.Look(r.Lanes.Names())
	if !due {
		return
	}
	found, took, err := r.Store.Marks(ctx, since, r.HandledKinds)
	if err != nil {
		r.Log.DebugContext(ctx, "no marks", telemetry.Err, r.DBError(err)) // claims are slower without
		return
	}
	most, again := r.Member.MarkLimit()
	r.Marks.Apply(found, since, took, most, again)
}
