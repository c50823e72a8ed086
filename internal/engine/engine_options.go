package engine

import "time"

// engineOptions configure an engine: see [Options].
type Options struct {
	Boot                               string                 // empty: a random one
	MayUse                             func(lane string) bool // nil: all lanes
	Name, Version                      string
	Slots                              int
	Disabled                           bool
	PollEvery                          time.Duration
	LeaseFor, HeartbeatEvery           time.Duration
	ShutdownGrace, StuckAfter          time.Duration
	Timeout, StaleAfter                time.Duration
	MaxAttempts, MaxCrashes, MaxFanOut int
	DirectURL                          string
}
