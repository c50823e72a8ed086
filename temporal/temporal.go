// Package temporal runs the jobs of a lane on Temporal, using the handlers that the program registers for its pods.
//
//	c, err := client.Dial(client.Options{HostPort: "temporal:7233", Namespace: "video"})
//	...
//	err = temporal.Open(r, temporal.Options{Client: c, Namespace: "video"})
//	...
//	err = r.Run(ctx)
//
// The command trapeze lane set NAME --engine temporal moves a lane to Temporal, and --engine postgres moves it back. Jobs are still
// submitted to PostgreSQL, in the application's transactions. PostgreSQL also holds all waiting jobs: delays, retries, approvals, fan-outs
// and next steps. Temporal runs the jobs that are ready: each run of a job is a workflow, and each call of its handler is an activity on
// the lane's task queue. See docs/temporal.md for how handlers are affected, and ADR 0050 for the reasons.
package temporal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pod"
	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store/outbox"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/temporal/internal/activities"
	"github.com/trapeze-run/trapeze/temporal/internal/forwarder"
	"github.com/trapeze-run/trapeze/temporal/internal/interpreter"
	"github.com/trapeze-run/trapeze/temporal/internal/settler"
	"github.com/trapeze-run/trapeze/temporal/internal/wire"
)

// Name is the engine's name in lanes, unless Options.Name is set.
const Name = "temporal"

// Options configure an engine.
type Options struct {
	// Client connects to the Temporal server. The caller closes it after Run.
	Client client.Client
	// Namespace is the client's namespace. The default is "default".
	Namespace string
	// Name is the engine's name. A program that uses several clusters must give each a different name. The default is [Name].
	Name string
	// Prefix is prepended to all workflow ids and task queue names. Databases that share a namespace need different prefixes: pods reject
	// runs of another database, but workers started by [Work] cannot. The default is "trapeze".
	Prefix string
	// DataConverter is the client's data converter, if it has one, for example to encrypt args and results in Temporal. The default is
	// JSON.
	DataConverter converter.DataConverter
	// UI is the address of Temporal's dashboard for links, such as https://temporal.example.com. If it is empty, there are no links.
	UI string
	// HandlersElsewhere means that the pod only forwards jobs and writes their ends, while programs that call [Work] run the handlers.
	HandlersElsewhere bool
	// HeartbeatTimeout is the time without a heartbeat after which a worker counts as dead and its jobs run elsewhere. A cancel request
	// reaches a handler within a fifth of this time. The default is 20 s.
	HeartbeatTimeout time.Duration
	// PollInterval is the interval at which the outbox is read if no notification arrives. The default is 1 s.
	PollInterval time.Duration
	// ReconcileEvery is how often Temporal is asked about open runs. The default is 1 min.
	ReconcileEvery time.Duration
}

func (o Options) withDefaults() (Options, error) {
	var errs []error
	if o.Client == nil {
		errs = append(errs, errors.New("the client is nil"))
	}
	for _, d := range []*time.Duration{&o.HeartbeatTimeout, &o.PollInterval, &o.ReconcileEvery} {
		if *d < 0 {
			errs = append(errs, fmt.Errorf("a duration is negative: %s", *d))
		}
	}
	if o.DataConverter == nil {
		o.DataConverter = converter.GetDefaultDataConverter()
	}
	set := func(s *string, value string) {
		if *s == "" {
			*s = value
		}
	}
	set(&o.Namespace, "default")
	set(&o.Name, Name)
	set(&o.Prefix, "trapeze")
	long := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	long(&o.HeartbeatTimeout, 20*time.Second)
	long(&o.PollInterval, time.Second)
	long(&o.ReconcileEvery, time.Minute)
	return o, errors.Join(errs...)
}

// Open registers Temporal as an engine of a runner. Call Open before Run, which then also forwards jobs to Temporal and runs workers for
// the engine's lanes. The pod's handlers serve both engines, but jobs of kinds that are registered with [runner.RequiresDatabase] fail in
// Temporal lanes, because they need to write in the transaction that ends them.
func Open(r *runner.Runner, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return fmt.Errorf("temporal options: %w", err)
	}
	p := inside.Of(r).Pod
	e := &engine{o: o, pod: p, outbox: p.Outbox(o.Name), names: forwarder.Names{Prefix: o.Prefix}, wake: routine.NewSignal(), podID: r.PodID()}
	if err := r.UseEngine(e); err != nil {
		return err
	}
	p.OnWake(e.wake.Set)
	p.OnRun(e.run)
	return nil
}

// engine serves Temporal lanes in one pod.
type engine struct {
	o      Options
	pod    *pod.Pod
	outbox *outbox.Outbox
	names  forwarder.Names
	wake   routine.Signal
	podID  string
}

// run forwards jobs and serves the lanes until ctx is cancelled. It then stops its workers, whose handlers can use the pod's grace period.
func (e *engine) run(ctx context.Context) {
	if e.pod.Opts.Disabled {
		return
	}
	alive, die := context.WithCancel(context.WithoutCancel(ctx))
	defer die()
	s := settler.New(e.pod, e.o.Name, e.outbox)
	var settles, serves sync.WaitGroup
	settles.Go(func() { _ = s.Live(alive) })
	select {
	case <-s.Ready():
		serves.Go(func() { e.forward(ctx, s.Database) })
		serves.Go(func() { e.work(ctx, s) })
	case <-ctx.Done():
	}
	serves.Wait()
	die()
	settles.Wait()
}

func (e *engine) forward(ctx context.Context, database string) {
	f := &forwarder.Forwarder{Client: e.o.Client, Converter: e.o.DataConverter, Outbox: e.outbox, Names: e.names, Database: database, Heartbeat: e.o.HeartbeatTimeout, Log: e.pod.Log, Damped: e.pod.Damped,
		Wake: e.wake, PollInterval: e.o.PollInterval, ReconcileEvery: e.o.ReconcileEvery}
	f.Run(ctx)
}

// work runs a worker for each of the engine's lanes.
func (e *engine) work(ctx context.Context, s *settler.Settler) {
	handlers := &activities.Handlers{Engine: e.pod.Engine, Client: e.o.Client, PodID: e.podID, Owns: s.Owns, Reader: func(_ context.Context, in wire.Run) work.Writer {
		return s.Reader(in)
	}}
	var (
		stopping sync.WaitGroup
		workers  = map[string]worker.Worker{}
		broken   = make(chan worker.Worker) // workers that stopped on their own
	)
	defer func() {
		for _, w := range workers {
			stopping.Go(w.Stop)
		}
		stopping.Wait()
	}()
	for {
		lanes, err := e.outbox.Lanes(ctx)
		if err != nil && ctx.Err() == nil {
			e.pod.Damped.Warn(ctx, "could not read the lanes of temporal, retrying", telemetry.Err, err)
		}
		served := len(lanes) > 0
		if e.pod.Lanes.Drained() {
			lanes = nil
		}
		if served {
			lanes = append(lanes, allPods)
		}
		for lane, w := range workers {
			if err == nil && !slices.Contains(lanes, lane) {
				delete(workers, lane)
				stopping.Go(w.Stop) // either the lane has moved and none of its jobs is running, or the pod is drained and its handlers can use the grace period
			}
		}
		for _, lane := range lanes {
			if workers[lane] != nil || lane != allPods && e.pod.Opts.MayUse != nil && !e.pod.Opts.MayUse(lane) {
				continue
			}
			var w worker.Worker
			w = e.worker(lane, s, handlers, func(err error) {
				e.pod.Damped.Warn(ctx, "a worker of temporal has stopped, starting another one", telemetry.Lane, lane, telemetry.Err, err)
				select {
				case broken <- w:
				case <-ctx.Done():
				}
			})
			if err := w.Start(); err != nil {
				e.pod.Damped.Warn(ctx, "could not start a worker of temporal, retrying", telemetry.Lane, lane, telemetry.Err, err)
				continue
			}
			workers[lane] = w
		}
		select {
		case <-ctx.Done():
			return
		case w := <-broken:
			maps.DeleteFunc(workers, func(_ string, one worker.Worker) bool { return one == w })
		case <-time.After(lanesEvery):
		}
	}
}

// allPods is used in place of a lane for the task queue that all pods serve.
const allPods = ""

// lanesEvery is how often the engine's lanes are read.
const lanesEvery = time.Second

// worker returns a worker for lane, which runs workflows and handlers. For allPods, the worker writes to PostgreSQL.
func (e *engine) worker(lane string, s *settler.Settler, handlers *activities.Handlers, broken func(error)) worker.Worker {
	identity := e.pod.Opts.Name + " " + e.podID
	if lane == allPods {
		w := worker.New(e.o.Client, e.names.Pods(), worker.Options{Identity: identity, DisableWorkflowWorker: true, MaxConcurrentActivityTaskPollers: 1,
			DisableRegistrationAliasing: true, OnFatalError: broken})
		s.Register(w)
		return w
	}
	w := worker.New(e.o.Client, e.names.Queue(lane), worker.Options{
		Identity:                           identity,
		MaxConcurrentActivityExecutionSize: e.pod.Slots(),
		WorkerStopTimeout:                  e.pod.Opts.ShutdownGrace + 5*time.Second,
		DisableRegistrationAliasing:        true,
		LocalActivityWorkerOnly:            e.o.HandlersElsewhere,
		OnFatalError:                       broken,
	})
	w.RegisterWorkflowWithOptions(interpreter.Run, workflow.RegisterOptions{Name: interpreter.Workflow})
	s.Register(w)
	if !e.o.HandlersElsewhere {
		handlers.Register(w)
	}
	return w
}

var (
	_ runner.LaneEngine  = (*engine)(nil)
	_ job.EngineProgress = (*engine)(nil)
)

// Name implements [job.LaneEngine].
func (e *engine) Name() string { return e.o.Name }

// JobURL implements [job.LaneEngine].
func (e *engine) JobURL(j job.JobRow) string {
	return e.page("workflows/" + url.PathEscape(e.names.Workflow(j.ID, outbox.EpochOf(j.Fence))))
}

// page returns the address of one of the namespace's pages in Temporal's dashboard.
func (e *engine) page(path string) string {
	if e.o.UI == "" {
		return ""
	}
	return strings.TrimSuffix(e.o.UI, "/") + "/namespaces/" + url.PathEscape(e.o.Namespace) + "/" + path
}
