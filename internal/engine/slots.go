package engine

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
)

// round is one pass over all lanes. With fewer free slots than lanes it takes several claims, so that a job in one lane need not wait
// for a poll because others were asked first. Only the poller's goroutine touches it.
type round struct {
	since time.Time
	tick  bool // nothing has happened that calls for a look: lanes whose own interval is not over yet are left out
	open  bool // lanes are left to be asked
	asked int
}

// settleSlots asks for slots of limited lanes and gives back what others wait for, before a claim. Call it in the poller's
// goroutine: answers must come in the order of their questions.
func (c *claimer) settleSlots(ctx context.Context) error {
	asks, later := c.Lanes.Asks(c.heard.Swap(false), time.Now())
	if later > 0 && !c.asksAgain.Swap(true) {
		// No other claim takes the jobs that have come since the answer was no: see TestAJobOfALimitedLaneThatComesRightAfter….
		time.AfterFunc(later, func() {
			c.asksAgain.Store(false)
			c.Wake()
		})
	}
	if len(asks) == 0 {
		return nil
	}
	asking, cancel := wait.Linger(ctx, time.Second)
	defer cancel()
	boot := c.Boot()
	answers, err := store.SettleSlots(asking, c.Store, boot, asks, c.HandledKinds)
	if err != nil {
		return err // what came of it is read by asking again
	}
	if c.Lanes.Settle(asks, answers, time.Now(), func() bool { return c.Boot() == boot }) {
		c.WakePeers()
	}
	return nil
}

// returnSlots gives back what a pod that stops does not use any more, until ctx ends. Call it when the poller has ended.
func (c *claimer) returnSlots(ctx context.Context) {
	c.Lanes.Close()
	for ok := true; ok; ok = wait.For(ctx, c.Opts.HeartbeatEvery) {
		_ = c.settleSlots(ctx) // what is left is taken back when the pod has left
	}
}

// findMarks reads the positions at which claims may begin.
func (c *claimer) findMarks(ctx context.Context) {
	since, due := c.Marks.Look(c.Lanes.Names())
	if !due {
		return
	}
	found, took, err := c.Store.Marks(ctx, since, c.HandledKinds)
	if err != nil {
		c.Log.DebugContext(ctx, "no marks", telemetry.Err, c.DBError(err)) // claims are slower without
		return
	}
	most, again := c.Member.MarkLimit()
	c.Marks.Apply(found, since, took, most, again)
}
