package engine

import "time"

// outage is this pod's latest series of heartbeats without an answer. An outage of the database cuts off all pods at once, and they
// reconnect one after the other. So for one lease after its own outage a pod spares every pod whose lease had not ended when the
// outage began. A pod that has just started knows of no outage and spares none. Guarded by pod.mu.
type outage struct {
	latest time.Time // of the latest answer, by the database's clock; zero: there was none
	open   bool      // fewer than two heartbeats in a row were answered since
	since  time.Time // the latest answer before the outage, by the database's clock
	ended  time.Time // when the first answer after it arrived, by the process's clock; zero: not yet
}

// begin notes that a heartbeat was not answered.
func (o *outage) begin() {
	if !o.open {
		o.open, o.since = true, o.latest
	}
	o.ended = time.Time{}
}

// answered notes an answer, of a moment by the database's clock, which was the beats-th in a row.
func (o *outage) answered(at time.Time, beats int) {
	o.latest = at
	if o.open && o.ended.IsZero() {
		o.ended = time.Now()
	}
	if beats >= 2 {
		o.open = false
	}
}

// spared returns the moment, by the database's clock, from which on leases that end are not held against their pods yet, and for how
// much longer. Zero: no lease is spared.
func (o *outage) spared(lease time.Duration) (since time.Time, left time.Duration) {
	if left = lease - time.Since(o.ended); o.since.IsZero() || left <= 0 {
		return time.Time{}, 0
	}
	return o.since, left
}
