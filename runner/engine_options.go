package runner

import "time"

// engineOptions configure an engine: see [Options].
type engineOptions struct {
	Name, Version                      string
	Slots                              int
	Disabled                           bool
	PollEvery                          time.Duration
	LeaseFor, HeartbeatEvery           time.Duration
	ShutdownGrace, StuckAfter          time.Duration
	StaleAfter                         time.Duration
	MaxAttempts, MaxCrashes, MaxFanOut int
	DirectURL                          string
}
