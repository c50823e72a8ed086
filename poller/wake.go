package poller

import (
	"time"

	"github.com/trapeze-run/trapeze/internal/fleet"
	"github.com/trapeze-run/trapeze/internal/store"
)

// WakePeers wakes the other engines of this process and the other pods, because there is work that this engine cannot take immediately.
func (p *Poller) WakePeers() { p.member.WakePeers() }

// Wake requests a claim for all due jobs.
func (p *Poller) Wake() {
	p.news.Store(true)
	p.look.Store(true)
	p.Timer.Wake()
}

// WakeAll wakes this poller, the other engines and the other pods.
func (p *Poller) WakeAll() {
	p.Wake()
	p.WakePeers()
}

// WakeDue requests a promotion and a claim, after a transaction that may have parked jobs that are due.
func (p *Poller) WakeDue() {
	p.due.parked(0)
	p.Wake()
}

// WakeAfter records that a job was parked for the given time, so that the poller wakes up when the job becomes due.
func (p *Poller) WakeAfter(wait time.Duration) {
	p.due.parked(wait)
	p.Timer.Nudge()
}

// SlotFree is called when a slot in a lane has become free. It wakes the poller if the latest claim left jobs behind, or if other pods are
// waiting for the slot.
func (p *Poller) SlotFree(lane string) {
	if p.backlog.slotFreed() || p.Lanes.Overdue(lane) {
		p.wakeForSlot()
	}
}

// wakeForSlot requests a claim because a slot is free. Unlike Wake, it does not suggest that more urgent jobs may have arrived.
func (p *Poller) wakeForSlot() {
	p.look.Store(true)
	p.Timer.Wake()
}

// Hear requests a promotion and a claim after a notification, once it is this engine's turn. An engine that holds or awaits slots of a limited lane claims
// immediately, because other engines may be unable to run that lane's jobs.
func (p *Poller) Hear(u fleet.Up) {
	for lane, positions := range u.Late {
		for priority, at := range positions {
			p.Marks.Admitted(store.AdmittedJob{Lane: lane, Priority: priority, ReadyAt: at})
		}
	}
	p.turns.Hear(u, p.Lanes.HoldsOrAwaits(), func(as fleet.Claiming) {
		if as.Escalates {
			p.escalates.Store(true)
			p.Late.AddAll(u.Late) // for the notification of all pods
		}
		if as.Promotes {
			p.due.parked(0)
		}
		p.Wake()
	})
}

// HearsAll reports whether the engine must hear of all new jobs, instead of only those that other pods leave behind.
func (p *Poller) HearsAll() bool { return p.turns.InFront() || p.Lanes.HoldsOrAwaits() }

// Refill requests a claim if half of the jobs that were claimed ahead of time have started, and more jobs may be pending.
func (p *Poller) Refill() {
	if p.Ahead.Low() && p.backlog.hasMore() {
		p.Timer.Wake()
	}
}

// SetPlace sets the identity's place in the fleet.
func (p *Poller) SetPlace(place fleet.Place) { p.turns.SetPlace(place) }
