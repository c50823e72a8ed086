package engine

import (
	"context"
	"time"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// round is a pass over all lanes. With fewer free slots than lanes, a pass takes several claims. Without passes, a lane might have to wait
// for the next poll because other lanes came first. Only the poller's goroutine uses a round.
type round struct {
	since time.Time
	open  bool // some lanes have not been included yet
	asked int
}

// settleSlots requests slots of limited lanes, and returns those that this pod does not need or that other pods are waiting for. With news
// of jobs, it first searches for lanes with jobs. It runs before each claim, on the poller's goroutine, because replies must be applied in
// the order in which the requests were sent.
func (c *claimer) settleSlots(ctx context.Context, news bool) (err error) {
	asking, cancel := routine.Linger(ctx, time.Second)
	defer cancel()
	var found []string
	if spans, limit := c.Lanes.Unused(news, c.Opts.PollEvery, time.Now()); len(spans) > 0 {
		if found, err = store.LanesWithWork(asking, c.Store, spans, c.HandledKinds, limit); err != nil {
			return err
		}
	}
	asks := c.Lanes.Asks(found, time.Now())
	if len(asks) == 0 {
		return nil
	}
	podID := c.PodID()
	answers, err := store.SettleSlots(asking, c.Store, podID, asks, c.HandledKinds)
	if err == nil && c.Lanes.Settle(asks, answers, time.Now(), func() bool { return c.PodID() == podID }) { // after an error, the next request reads the grants
		c.wakeForSlot()
	}
	return err
}

// HearSlots requests a claim if another pod has handed over a slot of a lane to this pod, or is waiting for one that this pod has. If all
// pods are meant, slots are free, so this pod also searches for lanes with jobs.
func (e *Engine) HearSlots(podID, lane string) {
	switch {
	case podID == "*":
		e.Lanes.Notified(lane)
		e.Wake()
	case podID == e.PodID() && e.Lanes.Notified(lane):
		e.wakeForSlot()
	}
}

// returnSlots keeps returning slots that a stopping pod no longer uses, until ctx ends. It must not be called before the poller has
// stopped.
func (c *claimer) returnSlots(ctx context.Context) {
	c.Lanes.Close()
	for ok := true; ok; ok = routine.Sleep(ctx, c.Opts.HeartbeatEvery) {
		_ = c.settleSlots(ctx, false) // any remaining slots are revoked after the pod has left
	}
}

// lanesOf returns a claim's lanes.
func lanesOf(wants []store.Want) []string {
	lanes := make([]string, len(wants))
	for i, w := range wants {
		lanes[i] = w.Lane
	}
	return lanes
}

// findMarks reads low-water marks for the lanes of a slow claim or submission. A claim reads a lane starting at its mark; without a mark,
// it would have to read the whole lane.
func (c *claimer) findMarks(ctx context.Context, lanes ...string) {
	if from := c.Marks.AfterSlow(lanes); len(from) > 0 {
		c.readMarks(ctx, from)
	}
}

// renewMarks starts to reread expired marks in the background. With two million dead rows, that takes half a second, which is too long for
// claims to wait.
func (c *claimer) renewMarks(ctx context.Context) {
	from := c.Marks.Expired(c.Lanes.Names())
	if len(from) == 0 {
		return
	}
	c.renewing.Go(func() {
		if c.readMarks(ctx, from) {
			_, wake := c.Member.MarkLimit()
			wake() // for jobs hidden by the expired marks
		}
	})
}

// readMarks reads the lanes' marks, from the given marks on, and reports whether it succeeded.
func (c *claimer) readMarks(ctx context.Context, from map[string][]store.Mark) bool {
	found, took, err := c.Store.Marks(ctx, from, c.HandledKinds, c.Marks.Margin())
	if err != nil {
		c.Marks.Failed(from)
		c.Log.DebugContext(ctx, "could not read the low-water marks of lanes", telemetry.Err, c.DBError(err)) // without marks, claims are slower but still correct
		return false
	}
	most, again := c.Member.MarkLimit()
	c.Marks.Apply(found, from, took, most, again)
	return true
}
