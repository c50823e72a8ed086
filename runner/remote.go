package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	stdnet "net"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/guard"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// ErrNoDatabase is the error of everything that needs the database, in a program that has none: a remote worker.
var ErrNoDatabase = errors.New("a remote worker has no database")

// InDatabase says that handlers of the kind write with [Job.Tx] or [Outcome.InTx], so that no remote worker can run it: to register
// it there is a mistake in the wiring, and pods refuse a worker that names it.
func InDatabase() HandleOption { return func(k *registered) { k.InDatabase = true } }

// RemoteOptions configure [NewRemote].
type RemoteOptions struct {
	// Name is the display name. Default: the host name.
	Name string
	// Logger receives what is worth a line. Default [slog.Default].
	Logger *slog.Logger
}

// NewRemote returns a runner that opens no connection to a database: register handlers with it as with any other and have package
// remote/worker run it. [Runner.Run], submissions and commands return [ErrNoDatabase].
func NewRemote(o RemoteOptions) (*Runner, error) {
	config, err := pgxpool.ParseConfig("host=nowhere.invalid user=nobody dbname=none sslmode=disable")
	if err != nil {
		return nil, err
	}
	config.ConnConfig.LookupFunc = func(context.Context, string) ([]string, error) { return nil, ErrNoDatabase }
	config.ConnConfig.DialFunc = func(context.Context, string, string) (stdnet.Conn, error) { return nil, ErrNoDatabase }
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, err
	}
	r, err := New(pool, Options{Name: o.Name, Logger: o.Logger, DirectURL: "off"})
	if err != nil {
		pool.Close()
		return nil, err
	}
	r.remote = true
	return r, nil
}

// Policies are the kinds that are registered, with what holds for them: for pods to know.
func (r *Runner) Policies() (list []SessionKind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	names, _ := r.kindsToRun()
	for _, name := range names {
		k := r.pod.Kinds[name]
		told := SessionKind{Name: name, MaxAttempts: k.MaxAttempts, MaxCrashes: k.MaxCrashes, Backoff: k.Backoff, StaleAfter: k.StaleAfter, KeepRunning: k.KeepRunning}
		if k.Timeout > 0 {
			told.Timeout = &k.Timeout
		}
		list = append(list, told)
	}
	return list
}

// Perform calls the handler of an assignment and returns its outcome, encoded and checked. boot is the id of the worker, and w takes the handler's writes.
// Its goroutine ends with the handler, whatever that does.
func (r *Runner) Perform(ctx context.Context, boot string, a Assignment, w work.Writer) (o *work.Outcome, err error) {
	k := r.pod.Kinds[a.Kind]
	if k == nil {
		return nil, fmt.Errorf("run %q: %w", a.Kind, job.ErrUnknownKind)
	}
	if !a.Deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, a.Deadline, job.ErrTimeout)
		defer cancel()
	}
	j := &work.Job{Pod: r.opts.Name, Writer: w, Lease: job.Lease{JobID: a.ID, Fence: a.Fence, Pod: boot}, Claimed: store.Claimed{
		ID: a.ID, Fence: a.Fence, Kind: a.Kind, Lane: a.Lane, Subject: a.Subject, Args: a.Args, PipelineID: a.PipelineID, Step: a.Step,
		Priority: a.Priority, Attempt: a.Attempt, Crashes: a.Crashes, PutOff: a.PutOff, ClaimedAt: a.ClaimedAt, Path: a.Path, Trace: a.Trace,
		Checkpoint: a.Checkpoint,
	}}
	if a.ParentID != 0 {
		j.Claimed.ParentID = &a.ParentID
	}
	err = guard.Call(func() (err error) {
		o, err = k.Run(ctx, j)
		if err != nil {
			work.ReadError(err) // a panic of it is the handler's
		}
		return err
	})
	if err == nil && o != nil {
		err = job.Permanent(checkRemote(r.pod.Engine, o))
	}
	return o, err
}

// checkRemote refuses an outcome that no pod would take.
func checkRemote(r *engine.Engine, o *work.Outcome) error {
	if o.InTx != nil {
		return fmt.Errorf("write in the commit that ends the job: %w", ErrNoDatabase)
	}
	if o.Next != nil {
		if err := r.CheckFollowing("next step", o.Next); err != nil {
			return err
		}
	}
	if o.Fan == nil {
		return nil
	}
	for i, child := range o.Fan.Children {
		if err := r.CheckFollowing("child", child); err != nil {
			return fmt.Errorf("child %d: %w", i+1, err)
		}
	}
	if len(o.Fan.Join) == 0 {
		return nil
	}
	return r.CheckPlanned(o.Fan.Join, o.Fan.Join[0].Foreign)
}
