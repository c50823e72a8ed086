package outbox

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// ErrInactive means that the job is no longer in the given epoch, that it has ended, or that another run has started in that epoch. Nothing
// was written. The run must not call a handler, and must not report an end.
var ErrInactive = errors.New("the run is not the latest run of its job")

// fencesPerEpoch is the number of fences in an epoch. It divides the number of fences that are available to a job in one database history.
// While a job is in an epoch, its row holds the last fence of that epoch. A pod that claims the job afterwards adds one to that fence, so
// the fences of a job that moves between pods and engines always increase.
const fencesPerEpoch = 1_000_000

// Fence returns the fencing token of an attempt; attempts are counted from 1 within each epoch. The token is higher than the tokens of all
// attempts in earlier epochs and the fences of all earlier claims by pods.
func Fence(epoch int64, attempt int) int64 {
	return epoch*fencesPerEpoch + int64(min(max(attempt, 0), fencesPerEpoch-2))
}

// lastFence returns the fence that the job's row holds during an epoch.
func lastFence(epoch int64) int64 { return (epoch+1)*fencesPerEpoch - 1 }

// PodID returns the id that represents an engine wherever a pod would have an id.
func PodID(engine string) string {
	h := sha256.Sum256([]byte("trapeze engine " + engine))
	h[6], h[8] = h[6]&0x0f|0x80, h[8]&0x3f|0x80 // a UUID of version 8
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[:4], h[4:6], h[6:8], h[8:10], h[10:16])
}

// IsEngine reports whether a pod id represents an engine. The ids of pods are random UUIDs.
func IsEngine(podID string) bool { return len(podID) == 36 && podID[14] == '8' }

// namesSQL lists the engines that are assigned to lanes. Plan: lanes is one page.
const namesSQL = `select distinct n.engine from trapeze.lanes n where n.engine <> 'postgres' order by 1`

// NameOf returns the name of the engine that a pod id represents, or an empty string if no lane uses that engine any longer.
func NameOf(ctx context.Context, s *store.Store, podID string) (string, error) {
	list, err := store.Rows(ctx, s, pgx.RowTo[string], namesSQL)
	if err != nil {
		return "", fmt.Errorf("list the engines: %w", err)
	}
	for _, name := range list {
		if PodID(name) == podID {
			return name, nil
		}
	}
	return "", nil
}

// EpochOf returns the epoch that a fence belongs to.
func EpochOf(fence int64) int64 { return fence / fencesPerEpoch }

// lanesSQL lists an engine's lanes. Plan: lanes is one page.
const lanesSQL = `select n.name from trapeze.lanes n where n.engine = $1 order by 1`

// Lanes returns the lanes whose jobs the engine runs. A lane that is moving to another engine is included until the move is complete.
func (b *Outbox) Lanes(ctx context.Context) ([]string, error) {
	list, err := store.Rows(ctx, b.s, pgx.RowTo[string], lanesSQL, b.o.Engine)
	if err != nil {
		return nil, fmt.Errorf("list the lanes of engine %s: %w", b.o.Engine, err)
	}
	return list, nil
}

// Remove removes the outbox row of an epoch that was ended by package store's statements instead of [Outbox.End]. Without this call, the
// row stays until the reconciler reaches it.
func (b *Outbox) Remove(ctx context.Context, id, epoch int64) error {
	if _, err := store.Rows(ctx, b.s, pgx.RowTo[int], doneWithSQL, id, lastFence(epoch)); err != nil {
		return fmt.Errorf("remove job %d, epoch %d from the outbox: %w", id, epoch, err)
	}
	b.scan.forget() // the job's subject may be free now
	return nil
}

// Lease returns the lease that a job's row contains during an epoch, for statements that check leases.
func (b *Outbox) Lease(id, epoch int64) job.Lease {
	return job.Lease{JobID: id, Fence: lastFence(epoch), Pod: b.podID}
}

// Options configure an [Outbox].
type Options struct {
	// Engine is the name of the engine, as specified in the lanes.
	Engine string
	// RetakeAfter is the delay after which Due again returns a job whose start was not recorded. The default is 30 s.
	RetakeAfter time.Duration
	// MaxCrashes is the number of lost runs after which a job without an individual limit fails. The default is 3.
	MaxCrashes int
	// MaxOpen is the maximum number of unfinished jobs that a lane without a slot limit hands to the engine. Further jobs wait in the lane,
	// where priorities, pauses and moves still apply to them. The default is 2,000.
	MaxOpen int
	// Ended, if not nil, is called after the commit for each job that the outbox has ended.
	Ended func(job.End)
	// Admitted, if not nil, is called with the jobs that the outbox has admitted. Pods or other engines may have to claim them.
	Admitted func([]store.AdmittedJob)
}

// Outbox hands jobs to one engine. It is safe for concurrent use, in any number of processes. After an error that does not match [ErrInactive],
// each method can be called again with the same arguments.
type Outbox struct {
	s     *store.Store
	o     Options
	podID string
	scan  scan
}

// New returns an engine's outbox.
func New(s *store.Store, o Options) *Outbox {
	if o.RetakeAfter <= 0 {
		o.RetakeAfter = 30 * time.Second
	}
	if o.MaxCrashes <= 0 {
		o.MaxCrashes = 3
	}
	if o.MaxOpen <= 0 {
		o.MaxOpen = 2000
	}
	return &Outbox{s: s, o: o, podID: PodID(o.Engine)}
}

// Item is a job in an epoch.
type Item struct {
	ID int64
	store.Definition
	Fence      int64 // the fence in the job's row, which is the last fence of the epoch
	Lane       string
	Priority   int
	Attempts   int // attempts made before this epoch
	Crashes    int // lost runs since the job last made progress
	Snoozes    int
	Checkpoint json.RawMessage // from an earlier claim by a pod; nil if there is none
	ClaimedAt  time.Time
	Run        string // the recorded run; empty if its start is not recorded
	Cancelled  bool   // a cancel request was committed
}

// Epoch returns the number of the job's epoch. It increases with each of the job's runs, but not always by one.
func (i *Item) Epoch() int64 { return EpochOf(i.Fence) }

// itemColumns lists the columns of [Item]. Row l is the job's row in live, joined with the run from the outbox, and row j is its row in
// jobs.
const itemColumns = `l.id, l.kind, l.subject, coalesce(j.key, ''), j.args, j.pipeline_id, j.parent_id, j.step, j.group_id, j.child_no,
	coalesce(j.impaired, false) as impaired, j.planned, j.max_attempts, j.max_crashes, j.submitter, coalesce(j.traceparent, '') as traceparent, j.ordered,
	j.created_at, l.fence, l.lane, l.priority::int, greatest(l.attempt - 1, 0) as attempts, l.crashes,
	coalesce((select g.snoozes from trapeze.job_progress g where g.id = l.id), 0) as snoozes,
	(select g.checkpoint from trapeze.job_progress g where g.id = l.id) as checkpoint, l.claimed_at, coalesce(l.run, '') as run, l.cancel_requested`

const (
	// databaseSQL returns the identity of the database. A standby and a base backup share it; a restored dump and a copy made with CREATE
	// DATABASE do not. Plan: two rows, one of them by pg_database_datname_index.
	databaseSQL = `select f.id || '/' || d.oid from trapeze.feed_epoch f, pg_database d where d.datname = current_database()`
	// holdsSQL finds an epoch's claim by the time of the claim. Plan: live_pkey.
	holdsSQL = `select l.id from trapeze.live l where l.id = $1 and l.fence = $2 and l.pod = $3::uuid and l.claimed_at = $4`
)

// Database returns the database's identity, or an empty string if it has none.
func (b *Outbox) Database(ctx context.Context) (string, error) {
	found, err := store.Rows(ctx, b.s, pgx.RowTo[string], databaseSQL)
	if err != nil || len(found) == 0 {
		return "", err
	}
	return found[0], nil
}

// Holds reports whether the job is in the given epoch and was claimed at the given time, to the microsecond. The time distinguishes it from
// a job of another database with the same id and epoch.
func (b *Outbox) Holds(ctx context.Context, id, epoch int64, claimed time.Time) (bool, error) {
	found, err := store.Rows(ctx, b.s, pgx.RowTo[int64], holdsSQL, id, lastFence(epoch), b.podID, claimed)
	if err != nil {
		return false, fmt.Errorf("find the claim of job %d, epoch %d: %w", id, epoch, err)
	}
	return len(found) > 0, nil
}

// NewIDs returns n unused job ids, for steps that an engine runs without a row in PostgreSQL.
func (b *Outbox) NewIDs(ctx context.Context, n int) ([]int64, error) { return b.s.NewIDs(ctx, n) }

// startedSQL records the run of an epoch, unless another run is recorded. It first locks the job's row by updating live, so that it cannot
// run concurrently with a command that ends the job. Plan: live_pkey and outbox_pkey, one row each; HOT updates.
const startedSQL = `
with held as (
	update trapeze.live set started_at = coalesce(started_at, now()) where id = $1 and fence = $2 and pod = $3::uuid returning id
)
update trapeze.outbox o set run = $4, seen_at = now() from held h
where o.id = h.id and o.fence = $2 and coalesce(o.run, $4) = $4 returning o.id`

// Started records that run executes an epoch of a job. The forwarder calls it after starting the run, and the run calls it before its first
// handler. It can be called repeatedly for the same run. It returns [ErrInactive] if another run was recorded for the epoch, or if the epoch
// is over. run must not be empty, and must identify a single run among all of the engine's runs with the same workflow id.
func (b *Outbox) Started(ctx context.Context, id, epoch int64, run string) error {
	if run == "" {
		return errors.New("record a start: the run has no name")
	}
	found, err := store.Rows(ctx, b.s, pgx.RowTo[int64], startedSQL, id, lastFence(epoch), b.podID, run)
	if err == nil && len(found) == 0 {
		err = ErrInactive
	}
	if err != nil {
		return fmt.Errorf("record the start of job %d, epoch %d: %w", id, epoch, err)
	}
	return nil
}

// Cancel is a request to cancel a run.
type Cancel struct {
	ID     int64
	Fence  int64      // the fence in the job's row during the epoch
	Reason job.Reason // cancelled: the run ends the job; stopped or deadline: the job has ended, and the run must be terminated
	Run    string     // the recorded run; empty if its start was not recorded before the job ended
}

// Epoch returns the epoch to which the request applies.
func (c *Cancel) Epoch() int64 { return EpochOf(c.Fence) }

const (
	// cancelsSQL lists the requests to cancel runs of an engine, except those for jobs whose start is not recorded yet. Due ends such jobs.
	// Plan: cancel_requests_pkey; one probe each of outbox_pkey and live_pkey.
	cancelsSQL = `
select c.job_id, c.fence, c.reason, coalesce(o.run, '')
from trapeze.cancel_requests c left join trapeze.outbox o on o.id = c.job_id and o.fence = c.fence
where c.pod = $1::uuid and (o.run is not null
	or (select true from trapeze.live l where l.id = c.job_id and l.fence = c.fence and l.pod = $1::uuid limit 1) is null)
order by c.created_at limit $2`
	// deliveredSQL deletes a request. Plan: cancel_requests_pkey.
	deliveredSQL = `delete from trapeze.cancel_requests where pod = $1::uuid and job_id = $2 and fence = $3 and reason = $4`
)

// Cancels returns requests to cancel runs, oldest first. A request keeps being returned until it has been delivered.
func (b *Outbox) Cancels(ctx context.Context, limit int) ([]Cancel, error) {
	list, err := store.Rows(ctx, b.s, pgx.RowToStructByPos[Cancel], cancelsSQL, b.podID, limit)
	if err != nil {
		return nil, fmt.Errorf("list the cancel requests of engine %s: %w", b.o.Engine, err)
	}
	return list, nil
}

// Delivered removes a request after the engine has accepted it, or has answered that it does not know the run.
func (b *Outbox) Delivered(ctx context.Context, c Cancel) error {
	if _, err := store.Rows(ctx, b.s, pgx.RowTo[int], deliveredSQL, b.podID, c.ID, c.Fence, string(c.Reason)); err != nil {
		return fmt.Errorf("remove the cancel request of job %d: %w", c.ID, err)
	}
	return nil
}
