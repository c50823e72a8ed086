package engine

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
)

// round is one pass over all lanes. With fewer free slots than lanes it takes several claims, so that a job in one lane does not wait
// for a poll because others came first. Only the poller's goroutine uses it.
type round struct {
	since time.Time
	tick  bool // only the timer requires it: lanes whose interval is not over yet are left out
	open  bool // lanes remain to be included
	asked int
}

// settleSlots requests slots of limited lanes and gives back those that others wait for, before a claim. Call it on the poller's
// goroutine, because answers must be applied in the order of the requests.
func (c *claimer) settleSlots(ctx context.Context) error {
	asks, later := c.Lanes.Asks(c.heard.Swap(false), time.Now())
	if later > 0 && !c.asksAgain.Swap(true) {
		// No other claim takes the jobs that have become due since the request was refused: see
		// TestAJobOfALimitedLaneThatComesRightAfter….
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
		return err // the next request reads the outcome
	}
	if c.Lanes.Settle(asks, answers, time.Now(), func() bool { return c.Boot() == boot }) {
		c.WakePeers()
	}
	return nil
}

// returnSlots gives back slots that a stopping pod no longer uses, until ctx ends. Call it when the poller has ended.
func (c *claimer) returnSlots(ctx context.Context) {
	c.Lanes.Close()
	for ok := true; ok; ok = wait.For(ctx, c.Opts.HeartbeatEvery) {
		_ = c.settleSlots(ctx) // the rest is revoked when the pod has left
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
		c.Log.DebugContext(ctx, "no marks", telemetry.Err, c.DBError(err)) // without marks, claims are only slower
		return
	}
	most, again := c.Member.MarkLimit()
	c.Marks.Apply(found, since, took, most, again)
}
