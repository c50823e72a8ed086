// Package env configures a runner from environment variables, as the trapeze command does:
//
//	config, err := env.Load()     // reports all mistakes together, each with its variable
//	pool, err := config.Open(ctx) // connects to DATABASE_URL
//	r, err := runner.New(pool, config.Options)
//
// Package api/env does the same for the HTTP API. The variables are listed in docs/reference.md.
package env

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/internal/dburl"
	"github.com/trapeze-run/trapeze/internal/envvar"
	"github.com/trapeze-run/trapeze/internal/schema"
	"github.com/trapeze-run/trapeze/runner"
)

// Config is the part of the environment that configures a runner. A program can change it before using it.
type Config struct {
	// DatabaseURL is the value of DATABASE_URL, either a URL or key=value pairs. It can contain pgx pool parameters, such as
	// pool_max_conns. It can be empty if the host opens the pool itself; [Config.Open] then returns an error.
	DatabaseURL string
	// Options holds the options for [runner.New]. An option that has a variable is set to the variable's value or its default. The others
	// are left to the host: Version, functions, providers, and a few that hosts rarely change.
	Options runner.Options
}

// Load reads the environment. It reports all mistakes in one error: each invalid variable with its valid values, and each unknown TRAPEZE_
// variable. Load ignores the variables of the API and of the commands.
func Load() (Config, error) {
	v, err := envvar.Read[envvar.Runner]()
	if !envvar.IsSet("TRAPEZE_HEARTBEAT_INTERVAL") { // a short lease must not conflict with the default heartbeat interval
		v.Heartbeat = min(v.Heartbeat, v.Lease/3)
	}
	lanes, lanesErr := parseLanes(v.Lanes)
	if err := errors.Join(err, envvar.Unknown(), lanesErr, validate(v, lanes)); err != nil {
		return Config{}, err
	}
	return Config{DatabaseURL: v.DatabaseURL, Options: options(v, lanes)}, nil
}

func validate(v envvar.Runner, lanes []runner.LaneSetup) error {
	var wrong envvar.Checks
	leastPoll := time.Second
	if program, _ := envvar.Read[envvar.Program](); program.DemoHandlers {
		leastPoll = 100 * time.Millisecond
	}
	invalid := schema.ValidName(v.Schema)
	wrong.That(invalid == nil, "TRAPEZE_SCHEMA: %v", invalid)
	wrong.That(v.Slots >= 1 && v.Slots <= 10_000, "TRAPEZE_SLOTS=%d: want 1 to 10000", v.Slots)
	wrong.That(v.PollInterval >= leastPoll, "TRAPEZE_POLL_INTERVAL=%s: want at least %s", v.PollInterval, leastPoll)
	wrong.That(v.Heartbeat > 0, "TRAPEZE_HEARTBEAT_INTERVAL=%s: want more than 0", v.Heartbeat)
	wrong.That(v.Lease > 0 && v.Heartbeat <= v.Lease/3, "TRAPEZE_LEASE_DURATION=%s: want at least three times TRAPEZE_HEARTBEAT_INTERVAL (%s)", v.Lease, v.Heartbeat)
	wrong.That(v.ShutdownGrace >= 0, "TRAPEZE_SHUTDOWN_GRACE=%s: want 0 or more", v.ShutdownGrace)
	wrong.That(v.MaxAttempts >= 1 && v.MaxAttempts <= math.MaxInt32, "TRAPEZE_MAX_ATTEMPTS=%d: want 1 to %d", v.MaxAttempts, math.MaxInt32)
	wrong.That(v.MaxCrashes >= 1, "TRAPEZE_MAX_CRASHES=%d: want at least 1", v.MaxCrashes)
	wrong.That(v.Timeout >= 0, "TRAPEZE_TIMEOUT=%s: want 0 (off) or more", v.Timeout)
	wrong.That(v.InactivityTimeout >= 0, "TRAPEZE_INACTIVITY_TIMEOUT=%s: want 0 (off) or more", v.InactivityTimeout)
	wrong.That(v.MinSchedule > 0, "TRAPEZE_MIN_SCHEDULE_INTERVAL=%s: want more than 0", v.MinSchedule)
	wrong.That(v.MaxAge >= 0, "TRAPEZE_MAX_AGE=%s: want 0 (off) or more", v.MaxAge)
	wrong.That(v.ApprovalTTL >= 0, "TRAPEZE_APPROVAL_TTL=%s: want 0 (off) or more", v.ApprovalTTL)
	for _, class := range []struct {
		name string
		keep time.Duration
	}{{"SUCCEEDED", v.KeepSucceeded}, {"FAILED", v.KeepFailed}, {"CANCELLED", v.KeepCancelled}, {"EVENTS", v.KeepEvents}} {
		wrong.That(class.keep >= 0, "TRAPEZE_RETENTION_%s=%s: want 0 (keep) or more", class.name, class.keep)
	}
	wrong.That(!slices.Contains(v.Kinds, ""), "TRAPEZE_KINDS: empty name in the list")
	for _, one := range []struct{ name, url string }{{"DATABASE_URL", v.DatabaseURL}, {"TRAPEZE_DATABASE_DIRECT_URL", v.DirectURL}} {
		if one.url == "" || one.url == "off" && one.name != "DATABASE_URL" {
			continue
		}
		_, err := dburl.Config(one.url) // its error does not contain the password
		wrong.That(err == nil, "%s: %w", one.name, err)
	}
	err := runner.ValidateLanes(lanes)
	wrong.That(err == nil, "TRAPEZE_LANES: %w", err)
	return errors.Join(wrong...)
}

// options returns the runner's options, in which 0 means the default and a negative value turns a setting off.
func options(v envvar.Runner, lanes []runner.LaneSetup) runner.Options {
	const off = -1
	return runner.Options{
		PodName: v.Pod, Schema: v.Schema, Slots: v.Slots, PollInterval: v.PollInterval, LeaseDuration: v.Lease, HeartbeatInterval: v.Heartbeat,
		ShutdownGrace: max(v.ShutdownGrace, 1), MaxAttempts: v.MaxAttempts, MaxCrashes: v.MaxCrashes, Timeout: v.Timeout, InactivityTimeout: v.InactivityTimeout,
		MaxAge: v.MaxAge, MinScheduleInterval: v.MinSchedule, ApprovalTTL: v.ApprovalTTL, FourEyes: v.FourEyes, Disabled: !v.Runner, NoClaimAhead: !v.ClaimAhead, Kinds: v.Kinds, Lanes: lanes,
		DirectURL: v.DirectURL, RetainSucceeded: cmp.Or(v.KeepSucceeded, off), RetainFailed: cmp.Or(v.KeepFailed, off),
		RetainCancelled: cmp.Or(v.KeepCancelled, off), RetainEvents: cmp.Or(v.KeepEvents, off),
	}
}
