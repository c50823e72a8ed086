package poller

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
func (p *Poller) settleSlots(ctx context.Context, news bool) (err error) {
	asking, cancel := routine.Linger(ctx, time.Second)
	defer cancel()
	var found []string
	if spans, limit := p.Lanes.Unused(news, p.Opts.PollInterval, time.Now()); len(spans) > 0 {
		if found, err = store.LanesWithWork(asking, p.Store, spans, p.HandledKinds, limit); err != nil {
			return err
		}
	}
	asks := p.Lanes.Asks(found, time.Now())
	if len(asks) == 0 {
		return nil
	}
	podID := p.PodID()
	answers, err := store.SettleSlots(asking, p.Store, podID, asks, p.HandledKinds)
	if err == nil && p.Lanes.Settle(asks, answers, time.Now(), func() bool { return p.PodID() == podID }) { // after an error, the next request reads the grants
		p.wakeForSlot()
	}
	return err
}

// HearSlots requests a claim if another pod has handed over a slot of a lane to this pod, or is waiting for one that this pod has. If all
// pods are meant, slots are free, so this pod also searches for lanes with jobs.
func (p *Poller) HearSlots(podID, lane string) {
	switch {
	case podID == "*":
		p.Lanes.Notified(lane)
		p.Wake()
	case podID == p.PodID() && p.Lanes.Notified(lane):
		p.wakeForSlot()
	}
}

// ReturnSlots keeps returning slots that a stopping pod no longer uses, until ctx ends. It must not be called before the poller has
// stopped.
func (p *Poller) ReturnSlots(ctx context.Context) {
	p.Lanes.Close()
	for ok := true; ok; ok = routine.Sleep(ctx, p.Opts.HeartbeatInterval) {
		_ = p.settleSlots(ctx, false) // any remaining slots are revoked after the pod has left
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

// FindMarks reads low-water marks for the lanes of a slow claim or submission. A claim reads a lane starting at its mark; without a mark,
// it would have to read the whole lane.
func (p *Poller) FindMarks(ctx context.Context, lanes ...string) {
	if from := p.Marks.AfterSlow(lanes); len(from) > 0 {
		p.readMarks(ctx, from)
	}
}

// renewMarks starts to reread expired marks in the background. With two million dead rows, that takes half a second, which is too long for
// claims to wait.
func (p *Poller) renewMarks(ctx context.Context) {
	from := p.Marks.Expired(p.Lanes.Names())
	if len(from) == 0 {
		return
	}
	p.renewing.Go(func() {
		if p.readMarks(ctx, from) {
			_, wake := p.member.MarkLimit()
			wake() // for jobs hidden by the expired marks
		}
	})
}

// readMarks reads the lanes' marks, from the given marks on, and reports whether it succeeded.
func (p *Poller) readMarks(ctx context.Context, from map[string][]store.Mark) bool {
	found, took, err := p.Store.Marks(ctx, from, p.HandledKinds, p.Marks.Margin())
	if err != nil {
		p.Marks.Failed(from)
		p.Log.DebugContext(ctx, "could not read the low-water marks of lanes", telemetry.Err, p.DBError(err)) // without marks, claims are slower but still correct
		return false
	}
	most, again := p.member.MarkLimit()
	p.Marks.Apply(found, from, took, most, again)
	return true
}
