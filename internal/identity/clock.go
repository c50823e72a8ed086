package identity

import (
	"sync"
	"time"
)

// clockTolerance is the smallest jump of the database's clock that is reported.
const clockTolerance = 2 * time.Second

// Clock is the database's clock, as known from heartbeats. It compares the database's time with this process's monotonic clock, so that the
// wall clock of this machine does not matter. It is safe for concurrent use.
type Clock struct {
	mu          sync.Mutex
	base        time.Time     // the first observation, on the process's clock
	least, most time.Duration // bounds of the database's time minus the monotonic time, at the latest heartbeat
}

// Observe records that the database's clock showed now at a moment between sent and received. It returns by how much, at least, the clock
// has jumped since the previous observation; a negative value means back.
func (c *Clock) Observe(sent, received, now time.Time) (jump time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.base.IsZero()
	if first {
		c.base = sent
	}
	at := now.Sub(c.base)
	least, most := at-received.Sub(c.base), at-sent.Sub(c.base)
	switch {
	case first:
	case most < c.least-clockTolerance:
		jump = most - c.least
	case least > c.most+clockTolerance:
		jump = least - c.most
	}
	c.least, c.most = least, most
	return jump
}

// Now returns the database's time, to within the response time of a heartbeat. Before the first heartbeat, it returns this machine's time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if !c.base.IsZero() {
		now = c.base.Add(now.Sub(c.base) + c.least)
	}
	return now.Round(0) // without the reading of the monotonic clock
}
