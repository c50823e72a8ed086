package runner

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/failpoint"
	"github.com/trapeze-run/trapeze/internal/journal"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// Job is one claim of a job, as its handler sees it. Its methods are safe for concurrent use.
type Job[A job.Args] struct {
	*core
	Args A
}

// core is the part of a Job that does not depend on the type of its arguments.
type core struct {
	r       *engine
	far     Far // of a remote worker; nil: there is a database
	Claimed store.Claimed
	Lease   job.Lease
	lost    chan struct{} // closed when the lease is gone for good
	gone    bool          // because the job was deleted; set before lost is closed
	turn    chan struct{} // one transaction at a time holds the lease
	pulse   pulse         // of the handler

	events     journal.Events
	progress   journal.Progress
	checkpoint atomic.Pointer[json.RawMessage] // the latest that was kept in this run; nil: none
}

// newCore returns the core of a claim of this engine.
func (r *engine) newCore(claimed store.Claimed, lease job.Lease) *core {
	c := &core{r: r, Claimed: claimed, Lease: lease, lost: make(chan struct{}), turn: make(chan struct{}, 1)}
	c.events.Init(r.journal, journaled{c})
	c.progress.Init(r.journal, journaled{c})
	return c
}

// journaled is a core as its journal uses it.
type journaled struct{ c *core }

func (j journaled) Lease() job.Lease      { return j.c.Lease }
func (j journaled) Lost() bool            { return j.c.isLost() }
func (j journaled) Check(err error) error { return j.c.orGone(err) }

// ID is the job's id.
func (c *core) ID() int64 { return c.Claimed.ID }

// Kind is the job's kind.
func (c *core) Kind() string { return c.Claimed.Kind }

// Lane is the lane in whose slot the job runs.
func (c *core) Lane() string { return c.Claimed.Lane }

// Subject is what the job is about; empty: nothing in particular.
func (c *core) Subject() string { return c.Claimed.Subject }

// Priority is the job's priority, −100 to 100.
func (c *core) Priority() int { return c.Claimed.Priority }

// Attempt is this try, counted from 1; tries that a crash, a shutdown or RetryLater ended are not counted.
func (c *core) Attempt() int { return c.Claimed.Attempt }

// Crashes is how often the job's pod has died or lapsed since it last advanced.
func (c *core) Crashes() int { return c.Claimed.Crashes }

// Fence is the fencing token of this claim: it rises with every claim of the job. A system outside that keeps the highest
// fence it saw can refuse a former owner.
func (c *core) Fence() int64 { return c.Claimed.Fence }

// Boot is the boot id of the pod that claimed the job.
func (c *core) Boot() string { return c.Lease.Pod }

// PodName is the display name of this pod.
func (c *core) PodName() string { return c.r.opts.Name }

// PipelineID is the id of the first job of the pipeline; a lone job's own id.
func (c *core) PipelineID() int64 { return c.Claimed.PipelineID }

// Step counts the steps of the pipeline before this one.
func (c *core) Step() int { return c.Claimed.Step }

// ClaimedAt is the database's time of the claim.
func (c *core) ClaimedAt() time.Time { return c.Claimed.ClaimedAt }

// Path is how this claim came about: "fast" (born running) or "poll".
func (c *core) Path() string { return c.Claimed.Path }

// Parent decodes the result of the step before into v. It returns [job.ErrNotFound] when there is none.
func (c *core) Parent(ctx context.Context, v any) error {
	if c.Claimed.ParentID == nil {
		return fmt.Errorf("read the parent of job %d: %w", c.ID(), job.ErrNotFound)
	}
	result, err := c.parentResult(ctx)
	if err != nil {
		return err
	}
	if result == nil {
		return fmt.Errorf("job %d ended without a result: %w", *c.Claimed.ParentID, job.ErrNotFound)
	}
	return json.Unmarshal(result, v)
}

func (c *core) parentResult(ctx context.Context) (json.RawMessage, error) {
	if c.far != nil {
		return c.far.ParentResult(ctx)
	}
	return c.r.front.Result(ctx, *c.Claimed.ParentID)
}

// Tx runs write in a transaction of the host's pool that holds this claim's lease, and commits it together with the
// checkpoint (nil: none): a former owner that wakes up cannot write a batch twice. The checkpoint is encoded after write,
// so that a pointer may hold what write learnt. When the connection breaks, write runs again in a new transaction; only
// one commit counts, and a commit whose reply was lost is looked up. It returns write's error, [job.ErrLeaseLost],
// [job.ErrGone] or [job.ErrCancelled], with nothing written.
func (c *core) Tx(ctx context.Context, write func(tx pgx.Tx) error, checkpoint any) error {
	if c.far != nil {
		return job.Permanent(fmt.Errorf("write with job %d held: %w", c.ID(), ErrNoDatabase))
	}
	var kept json.RawMessage // by the latest try
	err := c.r.held(ctx, c, c.r.pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		if err := write(tx); err != nil {
			return err
		}
		if err := c.events.WriteIn(ctx, tx); err != nil {
			return err
		}
		if checkpoint == nil {
			return nil
		}
		if kept, err = encode(checkpoint, job.MaxArgsBytes); err != nil {
			return fmt.Errorf("encode checkpoint of job %d: %w", c.ID(), err)
		}
		return store.Checkpoint(ctx, c.r.store, tx, c.ID(), kept)
	}, nil)
	if err != nil {
		return err
	}
	if kept != nil {
		c.checkpoint.Store(&kept)
	}
	c.pulse.beat()
	return failpoint.Hit(failpoint.CheckpointDone)
}

// Progress notes how far the job is: units done of a total, for progress bars. It never waits for the database: at most a
// few notes a second are written, the latest always.
func (c *core) Progress(done, total int64) {
	c.noted(job.Progress{Done: &done, Total: &total})
}

// Message notes in a few words what the job is doing. As [Job.Progress].
func (c *core) Message(text string) {
	text = job.Storable(text, 500)
	c.noted(job.Progress{Message: &text})
}

func (c *core) noted(p job.Progress) {
	if c.far != nil {
		c.far.Progress(p)
		return
	}
	c.pulse.beat()
	c.progress.Set(p)
}
