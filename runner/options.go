package runner

import (
	"math"

	"github.com/trapeze-run/trapeze/internal/dburl"
	"github.com/trapeze-run/trapeze/internal/identity"

	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/trapeze-run/trapeze/internal/pod"
	"github.com/trapeze-run/trapeze/internal/schema"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
)

// Options configures a [Runner]. The zero value is valid; each field states its default.
type Options struct {
	// PodName is the pod's display name. Characters that are not allowed in a kind name are replaced with -; see [job.DisplayName]. The pod is
	// identified by a random id, not by this name. Default: the host name.
	PodName string
	// Version is the host's build version, shown in the list of pods.
	Version string
	// Schema is the schema that contains all tables. Default trapeze.
	Schema string
	// Slots is the maximum number of jobs that this pod runs concurrently, across all lanes. Default 4 × GOMAXPROCS, which follows
	// the CPU limit of a container.
	Slots int
	// PollInterval is the interval at which the pod polls for due jobs, ± 10 %, as a safety net for lost wake-ups. Default 10s, minimum 100ms.
	PollInterval time.Duration
	// LeaseDuration is the duration of this pod's lease, which each heartbeat renews. After a crash, a job is delayed by at most this time plus
	// one heartbeat interval. Default 8s, minimum 3 × HeartbeatInterval. Set the same value on all pods.
	LeaseDuration time.Duration
	// HeartbeatInterval is the interval at which the pod renews its lease. Default 2s.
	HeartbeatInterval time.Duration
	// ShutdownGrace is the time that handlers have to finish after Run's context is done, before their contexts are cancelled. Default 20s.
	ShutdownGrace time.Duration
	// StuckAfter is the time that a handler may ignore the cancellation of its context before the runner settles the job without waiting
	// for it. Default 10s.
	StuckAfter time.Duration
	// MaxAttempts is the number of attempts after which a handler error fails the job, for kinds and jobs that set no limit. Between
	// attempts, the job waits about 1, 2, 4 … seconds, as defined by the zero [Backoff]. Default 5. With 1, an error fails the job
	// immediately, which suits handlers that must not repeat their effects outside the database.
	MaxAttempts int
	// MaxCrashes is the crash limit of kinds that set none: a job fails when its pod dies or loses its lease for the n-th time. Default 3.
	MaxCrashes int
	// MaxFanOut is the maximum number of branches per fan-out. Default 10,000.
	MaxFanOut int
	// Timeout limits each run, for kinds that set no timeout. Default 0: no limit.
	Timeout time.Duration
	// MaxAge limits the time that a job may be pending or running, counted from when it became due. A job that exceeds the limit fails with
	// the reason deadline. MaxAge applies to lanes that set no limit (lanes.max_age_s). A running job ends immediately, and its handler's
	// context is cancelled with [job.ErrDeadline]. Ages are checked once a minute. Default 0: no limit. Set the same value on all pods.
	MaxAge time.Duration
	// ApprovalTTL limits the time that a job may await approval, counted from its submission plus its delay. After that, the job is
	// cancelled as expired. Default 0: no limit. Set the same value on all pods.
	ApprovalTTL time.Duration
	// FourEyes requires every approval to come from someone other than the job's submitter and any actor who sent the job back to approval
	// with a retry. It applies to [Admin.Approve], and to this program's API and commands. Over HTTP, it also blocks two ways to bypass
	// approval: new arguments for a later step of an approved pipeline, and schedules for lanes and kinds that require approval. It
	// requires authentication, because every caller must have a distinct name. Default false: only in lanes that require it, see
	// [job.Lane]. Set the same value on all pods.
	FourEyes bool
	// InactivityTimeout ends a run if its handler gives no sign of life for this long, for kinds that set no limit; see the [InactivityTimeout] option of
	// [Handle]. Default 0: off.
	InactivityTimeout time.Duration
	// Disabled makes this a pod that submits jobs and recovers the jobs of dead pods, but never claims any.
	Disabled bool
	// NoClaimAhead keeps the pod from claiming more jobs than it has free slots. By default, the pod claims jobs ahead of time if the
	// handlers of their kind return faster than a claim takes. It then claims at most 10 × Slots and at most 100 extra jobs, which wait for
	// at most 200 ms. See docs/guarantees.md for the crash limit of these jobs. Default false.
	NoClaimAhead bool
	// Kinds is the subset of the registered kinds that this pod runs. Default: all.
	Kinds []string
	// MinScheduleInterval is the minimum interval between two occurrences of a schedule. Default 1s.
	MinScheduleInterval time.Duration
	// Lanes are created by [Runner.Run] and migrate.Up, with their slots and kinds, if the database has no lanes with these names. After
	// that, the settings in the database apply. A submission to a declared lane that the database does not have yet returns
	// [job.ErrUnknownLane]. The lane named default always exists; its declaration applies until its settings are changed in any other way.
	// [New] returns an error if a kind is in two lanes. Default: none.
	Lanes []LaneSetup
	// DirectURL is a connection string that reaches PostgreSQL without a transaction pooler. It is used for LISTEN and the maintenance
	// lock. Default: the host pool's settings. "off" disables both; wake-ups from other pods are then replaced by polling.
	DirectURL string
	// BehindPooler declares that the host's pool connects through a transaction pooler. Default: true if DirectURL is set.
	BehindPooler bool
	// Middleware wraps each handler, with the first element outermost. Default: none.
	Middleware []Middleware
	// EnqueueMiddleware wraps each submission, with the first element outermost. Default: none.
	EnqueueMiddleware []EnqueueMiddleware
	// OnEnd is called after the commit for each job that this process ended for good. This includes jobs that ended without a handler, such
	// as a job that the recovering pod fails because its pods crashed too often. Each end is reported by one process, at most once.
	// Delivery is not guaranteed: an end is lost if the process dies between the commit and the call, or if the program that ended the job
	// has no hook, such as trapeze cancel with DATABASE_URL.
	//
	// The calls delay no jobs: a separate goroutine makes them one after another. If jobs end faster than OnEnd returns, up to 1,000 ends
	// are queued; the last 500 places are reserved for failures. Further ends are dropped and logged. ctx ends after ten seconds.
	// [Runner.Run] and [Runner.Close] wait up to five seconds for the remaining calls, then cancel ctx and drop the others. A panic is
	// logged. Default: none.
	OnEnd func(ctx context.Context, e job.End)
	// OnRetry is called for each failed attempt that will be retried, after the commit that makes the job pending again. It also reports
	// errors of [Outcome.InTx], timeouts, and handlers that ignore their context, none of which middleware sees. e.State is pending, and
	// e.Reason states why the attempt failed. A crash of the pod, a hand-back and a [Snooze] are not failed attempts. Otherwise it works
	// like OnEnd. Default: none.
	OnRetry func(ctx context.Context, e job.End)
	// RetainSucceeded, RetainFailed, RetainCancelled and RetainEvents set how long finished jobs and the history are kept. The defaults are
	// 48h, 168h, 48h and 168h. A negative value keeps them forever.
	RetainSucceeded, RetainFailed, RetainCancelled, RetainEvents time.Duration
	// TracerProvider creates the spans of submissions and runs; see docs/observability.md. Default: OpenTelemetry's global provider at the
	// time of each submission and run. Without a provider, nothing is traced or stored.
	TracerProvider trace.TracerProvider
	// TraceQueries passes the statements on the runner's own connections (claims, polls, heartbeats) to the host pool's query tracer
	// (pgx.ConnConfig.Tracer, for example otelpgx). Default false: the tracer sees only statements on the host's pool, such as those of
	// EnqueueTx, [Job.Tx] and [Outcome.InTx].
	TraceQueries bool
	// Logger receives the runner's log records. Default: slog.Default().
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.PodName == "" {
		o.PodName, _ = os.Hostname()
	}
	o.PodName = job.DisplayName(o.PodName)
	if o.Schema == "" {
		o.Schema = "trapeze"
	}
	set(&o.Slots, 4*runtime.GOMAXPROCS(0))
	set(&o.PollInterval, 10*time.Second)
	set(&o.LeaseDuration, 8*time.Second)
	set(&o.HeartbeatInterval, min(2*time.Second, o.LeaseDuration/3))
	set(&o.ShutdownGrace, 20*time.Second)
	set(&o.StuckAfter, 10*time.Second)
	set(&o.MaxAttempts, 5)
	set(&o.MaxCrashes, 3)
	set(&o.MaxFanOut, 10_000)
	set(&o.MinScheduleInterval, time.Second)
	set(&o.RetainSucceeded, 48*time.Hour)
	set(&o.RetainFailed, 168*time.Hour)
	set(&o.RetainCancelled, 48*time.Hour)
	set(&o.RetainEvents, 168*time.Hour)
	if o.DirectURL != "" {
		o.BehindPooler = true
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

func set[T int | time.Duration](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

// maxSlots is higher than any process can use. It catches typos such as an extra digit.
const maxSlots = 10_000

// validate returns all mistakes as one error, so that an operator can fix a configuration in one go.
func (o Options) validate() error {
	var errs []error
	complain := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	if err := schema.ValidName(o.Schema); err != nil {
		errs = append(errs, err)
	}
	complain(o.Slots > 0 && o.Slots <= maxSlots, "slots: %d, want 1 to %d", o.Slots, maxSlots)
	complain(o.PollInterval >= 100*time.Millisecond, "poll interval of %s is below 100ms", o.PollInterval)
	complain(o.HeartbeatInterval > 0, "heartbeat of %s, want more than 0", o.HeartbeatInterval)
	complain(o.LeaseDuration >= 3*o.HeartbeatInterval, "lease of %s is shorter than three heartbeats of %s", o.LeaseDuration, o.HeartbeatInterval)
	complain(o.ShutdownGrace >= 0, "shutdown grace of %s is negative", o.ShutdownGrace)
	complain(o.StuckAfter > 0, "stuck-after of %s, want more than 0", o.StuckAfter)
	complain(o.MaxAttempts > 0 && o.MaxAttempts <= math.MaxInt32, "max attempts: %d, want 1 to %d", o.MaxAttempts, math.MaxInt32)
	complain(o.MaxCrashes > 0, "max crashes: %d, want at least 1", o.MaxCrashes)
	complain(o.MaxFanOut > 0, "max fan-out: %d, want at least 1", o.MaxFanOut)
	complain(o.Timeout >= 0, "timeout of %s is negative", o.Timeout)
	complain(o.MaxAge >= 0, "max age of %s is negative", o.MaxAge)
	complain(o.ApprovalTTL >= 0, "approval TTL of %s is negative", o.ApprovalTTL)
	complain(o.InactivityTimeout >= 0, "inactivity-timeout of %s is negative", o.InactivityTimeout)
	complain(o.MinScheduleInterval > 0, "minimum schedule interval of %s, want more than 0", o.MinScheduleInterval)
	if o.DirectURL != "" && o.DirectURL != "off" {
		_, err := dburl.Config(o.DirectURL)
		complain(err == nil, "direct URL: %w", err)
	}
	for i, m := range o.Middleware {
		complain(m != nil, "middleware %d is nil", i+1)
	}
	for i, m := range o.EnqueueMiddleware {
		complain(m != nil, "enqueue middleware %d is nil", i+1)
	}
	errs = append(errs, ValidateLanes(o.Lanes))
	return errors.Join(errs...)
}

// pod returns the options for the pod.
func (o Options) pod() pod.Options {
	p := pod.Options{
		Options: identity.Options{
			Name: o.PodName, Version: o.Version, Slots: o.Slots, Disabled: o.Disabled, ClaimAhead: !o.NoClaimAhead, PollInterval: o.PollInterval, LeaseDuration: o.LeaseDuration,
			HeartbeatInterval: o.HeartbeatInterval, ShutdownGrace: o.ShutdownGrace, StuckAfter: o.StuckAfter, InactivityTimeout: o.InactivityTimeout,
			MaxAttempts: o.MaxAttempts, MaxCrashes: o.MaxCrashes, MaxFanOut: o.MaxFanOut, DirectURL: o.DirectURL, Timeout: o.Timeout,
		},
		Schema: o.Schema, BehindPooler: o.BehindPooler, MaxAge: o.MaxAge, ApprovalTTL: o.ApprovalTTL, FourEyes: o.FourEyes,
		MinScheduleInterval: o.MinScheduleInterval, RetainSucceeded: o.RetainSucceeded, RetainFailed: o.RetainFailed,
		RetainCancelled: o.RetainCancelled, RetainEvents: o.RetainEvents, OnEnd: o.OnEnd, OnRetry: o.OnRetry, TracerProvider: o.TracerProvider, TraceQueries: o.TraceQueries, Logger: o.Logger, PassEvery: time.Minute,
	}
	p.DeclaredLanes = map[string]string{}
	for _, l := range o.Lanes {
		p.Lanes = append(p.Lanes, admin.BootLane(l))
		for _, kind := range l.Kinds {
			p.DeclaredLanes[kind] = l.Name
		}
	}
	return p
}
