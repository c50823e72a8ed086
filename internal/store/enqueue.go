package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/trapeze-run/trapeze/job"
)

// enqueueStatement builds a statement that inserts jobs. input is the CTE that selects the jobs, and place contains the remaining CTEs.
func enqueueStatement(input, place string) *statement {
	return newStatement(with(input+"\n)", place), `select id, place, `+tookMicros+` from placed`)
}

// enqueueSQL inserts jobs, and starts them on insert where possible. Jobs of the same priority that are already waiting in the lane go
// first, so the ahead column holds the job's own rank. Plan: CTE scans and inserts; one probe of lanes per job. A job that requests to
// start on insert costs at most one more probe of live_for_claim for each range, and one of subjects.
//
// enqueueFreeSQL is like enqueueSQL, for jobs that do not request to start on insert and are inserted in one of the host application's
// transactions. The round trip first pins the plan, because PostgreSQL would otherwise replan every call, and restores the caller's
// settings at the end. The statement skips ids that are in use, so that the transaction can continue. Plan: CTE scans and inserts; one
// probe of lanes and of jobs_pkey per job.
var (
	enqueueSQL     = enqueueStatement(enqueueInput, placeParts(goesAheadInRanges))
	enqueueFreeSQL = enqueueStatement(enqueueInput+`
	where not coalesce((select true from trapeze.jobs t where t.id = w.id limit 1), false)`, placeWaiting)
)

// enqueueInput is the CTE of new jobs for [placeParts]. Plan: as for needsApproval.
var enqueueInput = `input_jobs as (
	select w.*, false as handed, null::int as lane_place, null::int as kind_place, (-w.priority)::smallint as ahead, @pod::uuid as pod,
		` + needsApproval + ` as approval
	from unnest(` + newJobs.params() + `) as w(` + newJobs.each("%[2]s") + `)`

// Enqueued is the result of inserting jobs.
type Enqueued struct {
	Places map[int64]Place
	Took   time.Duration // execution time on the server
}

// Enqueue inserts jobs with one statement on the store's own pool, and returns where each one was placed. After an error for which
// [Unknown] is true, call [Store.Submitted].
func (s *Store) Enqueue(ctx context.Context, podID string, list []NewJob) (map[int64]Place, error) {
	e, err := s.EnqueueFrom(ctx, podID, list, nil)
	return e.Places, err
}

// EnqueueFrom is like [Store.Enqueue], but looks for more urgent jobs only from the lane's marks on. All jobs must be in the same lane, unless there are no
// marks.
func (s *Store) EnqueueFrom(ctx context.Context, podID string, list []NewJob, marks []Mark) (Enqueued, error) {
	_, _, ranges := readRanges(marks)
	var placed []placedRow
	var err error
	if len(list) == 1 && list[0].plain() {
		by := append(newJobs.values(enqueueOneSQL, &list[0]), args{{"pod", podID}, {"ahead", int4(-list[0].Priority)}}...)
		placed, err = run(ctx, s, scanPlaced, enqueueOneSQL, append(by, ranges...))
	}
	if err == nil && len(placed) == 0 {
		by := append(newJobs.arrays(enqueueSQL, pointers(list)), args{{"pod", podID}}...)
		placed, err = run(ctx, s, scanPlaced, enqueueSQL, append(by, ranges...))
	}
	if err != nil {
		return Enqueued{}, fmt.Errorf("enqueue: %w", err)
	}
	e := Enqueued{Places: placesOf(placed)}
	for _, p := range placed {
		e.Took = max(e.Took, p.took)
	}
	return e, nil
}

// EnqueueIn inserts jobs in the caller's transaction, pending or parked, and returns where each one was placed. If wake is true, the same
// round trip calls [Store.Notify]. After an error for which [Store.IDTaken] is true, the transaction can continue, unless PostgreSQL raised
// the error.
func EnqueueIn(ctx context.Context, s *Store, db DB, list []NewJob, wake bool) (map[int64]Place, error) {
	fail := func(err error) (map[int64]Place, error) { return nil, fmt.Errorf("enqueue: %w", err) }
	var placed []placedRow
	batch := &pgx.Batch{}
	if wake {
		batch.Queue(notifySQL, s.Channel(), "")
	}
	if len(list) == 1 && list[0].plain() {
		if err := queue(batch, s, scanPlaced, enqueueOneFreeSQL, append(newJobs.values(enqueueOneFreeSQL, &list[0]), args{{"pod", nil}}...), &placed); err != nil {
			return fail(err)
		}
		if err := db.SendBatch(ctx, batch).Close(); err != nil {
			return fail(err)
		}
		batch = &pgx.Batch{}
	}
	if len(placed) == 0 {
		list = slices.Clone(list)
		for i := range list {
			list[i].Starts = false
		}
		batch.Queue(keepSettingsSQL)
		batch.Queue(pinSQL)
		if err := queue(batch, s, scanPlaced, enqueueFreeSQL, append(newJobs.arrays(enqueueFreeSQL, pointers(list)), args{{"pod", nil}}...), &placed); err != nil {
			return fail(err)
		}
		batch.Queue(restoreSettingsSQL)
		if err := db.SendBatch(ctx, batch).Close(); err != nil {
			return fail(err)
		}
	}
	places := placesOf(placed)
	if len(places) < len(list) {
		return nil, fmt.Errorf("enqueue: %w", errIDTaken)
	}
	return places, nil
}

type placedRow struct {
	id    int64
	place Place
	took  time.Duration // execution time of the statement so far
}

func placesOf(placed []placedRow) map[int64]Place {
	places := make(map[int64]Place, len(placed))
	for _, p := range placed {
		places[p.id] = p.place
	}
	return places
}

func scanPlaced(row pgx.CollectableRow) (p placedRow, err error) {
	var place string
	var micros int64
	if err = row.Scan(&p.id, &place, &micros); err == nil {
		p.took = time.Duration(micros) * time.Microsecond
		p.place, err = placeOf(place)
	}
	return p, err
}

var (
	reserveSubmissionSQL = newStatement(`insert into trapeze.submissions (key, job_id, fingerprint) values (@key, @id, @fingerprint) on conflict (key) do nothing`)
	readSubmissionSQL    = newStatement(`select job_id, fingerprint from trapeze.submissions where key = @key`)
	assignSubmissionSQL  = newStatement(`update trapeze.submissions set job_id = @id where key = @key`)
)

// Fingerprint returns a hash of a submission's content: its kind, subject, key, arguments and next steps.
func Fingerprint(n NewJob) []byte {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(n.Kind), []byte(n.Subject), n.Args, n.Planned, []byte(n.Key)} {
		fmt.Fprintf(h, "%d:", len(part))
		h.Write(part)
	}
	return h.Sum(nil)
}

// ReserveSubmission reserves an idempotency key for id, in the caller's transaction. It returns the id that holds the key: either id
// itself, or the id of an earlier submission with the same content. It returns [job.ErrKeyReused] if the content differs.
func ReserveSubmission(ctx context.Context, s *Store, db DB, key string, id int64, fingerprint []byte) (int64, error) {
	for range 100 {
		reserved, err := do(ctx, s, db, reserveSubmissionSQL, args{{"key", key}, {"id", id}, {"fingerprint", fingerprint}})
		if err != nil {
			return 0, fmt.Errorf("reserve idempotency key: %w", err)
		}
		if reserved == 1 {
			return id, nil
		}
		var holder int64
		var held []byte
		err = db.QueryRow(ctx, s.In(readSubmissionSQL.text), key).Scan(&holder, &held)
		if errors.Is(err, pgx.ErrNoRows) {
			continue // retention deleted the key between the two statements
		}
		if err != nil {
			return 0, fmt.Errorf("read idempotency key: %w", err)
		}
		if !bytes.Equal(held, fingerprint) {
			return 0, job.ErrKeyReused // the error omits the key, which was hashed if there is a submitter
		}
		return holder, nil
	}
	return 0, errors.New("reserve idempotency key: its holder keeps changing")
}

// notifySQL notifies the listening pods when the transaction commits. The payload is the transaction's id, which NOTIFY assigns anyway and
// from which package fleet chooses the pods that claim first. All notifications in a transaction are identical, so PostgreSQL sends only
// one.
const (
	notifySQL     = `select pg_notify($1, pg_current_xact_id()::text || $2)`
	notifyThisSQL = `select pg_notify($1, $2)`
)

// Settings is the payload of a wake-up sent after lane, pod or queue settings have changed.
const Settings = "settings"

// AssignSubmission points an idempotency key reserved in this transaction to the job that already holds the submission's unique key.
func AssignSubmission(ctx context.Context, s *Store, db DB, key string, id int64) error {
	if _, err := do(ctx, s, db, assignSubmissionSQL, args{{"key", key}, {"id", id}}); err != nil {
		return fmt.Errorf("assign idempotency key: %w", err)
	}
	return nil
}

// Channel returns the name of this schema's wake-up channel, to which all programs send their notifications.
func (db *Database) Channel() string { return db.schema + "_wake" }

// AllChannel returns the name of the channel on which every pod listens. A wake-up is sent there if the pods that claimed first have left
// jobs behind (see package fleet).
func (db *Database) AllChannel() string { return db.schema + "_wake_all" }

// Notify wakes pods for new jobs when the caller's transaction commits.
func (db *Database) Notify(ctx context.Context, tx DB) error {
	return NotifyLate(ctx, tx, db.Channel(), "")
}

// NotifyLate notifies the pods that listen on a channel. late is the result of [fleet.Late.Take].
func NotifyLate(ctx context.Context, tx DB, channel, late string) error {
	_, err := tx.Exec(ctx, notifySQL, channel, late)
	return err
}

// NotifySettings sends a wake-up that makes all pods reload the lane, pod and queue settings.
func (db *Database) NotifySettings(ctx context.Context, tx DB) error {
	_, err := tx.Exec(ctx, notifyThisSQL, db.AllChannel(), Settings)
	return err
}

// errIDTaken reports that an id was already in use, so no job was inserted under it.
var errIDTaken = errors.New("a job with this id exists already")

// IDTaken reports whether jobs were not inserted because one of their ids was in use. They can be inserted with new ids.
func (s *Store) IDTaken(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pg.Code != "23505" || pg.SchemaName != s.schema {
		return errors.Is(err, errIDTaken)
	}
	switch pg.ConstraintName {
	case "jobs_pkey", "live_pkey", "parked_pkey": // any of these tables may be written first
		return true
	}
	return false
}

// submittedSQL reads where jobs were inserted, after a reply was lost. It counts a job only if its id and all requested values match; a newer submission can
// have replaced its args. A job that
// was started on insert has its transaction's time as both its ready time and its claim time. Plan: primary keys.
var submittedSQL = newStatement(`
select j.id, case when l.pod = @pod::uuid and l.fence = 1 and l.claimed_at = l.ready_at then 'running' when p.why = 'approval' then 'awaiting_approval'
	when p.why = 'subject' then 'waiting' when p.why = 'key' then 'keyed' when p.why is not null then 'parked' else 'pending' end, 0::bigint
from unnest(@new_id::bigint[], @new_kind::text[], @new_subject::text[], @new_unique_key::text[], @new_args::text[]) as w(id, kind, subject, unique_key, args)
join trapeze.jobs j on j.id = w.id
left join lateral (select l.* from trapeze.live l where l.id = w.id limit 1) l on true
left join lateral (select p.why from trapeze.parked p where p.id = w.id limit 1) p on true
where j.kind = w.kind and j.subject = w.subject and j.unique_key is not distinct from w.unique_key and (j.args::text = w.args or j.replaced > 0)`)

// Submitted returns where those of the new jobs that were inserted are. A job that has been claimed since, or has ended, counts as pending. It does
// not count a different job with the same id, which can exist after a failover that lost commits.
func (s *Store) Submitted(ctx context.Context, podID string, list []*NewJob) (map[int64]Place, error) {
	found, err := run(ctx, s, scanPlaced, submittedSQL, append(newJobs.arrays(submittedSQL, list), args{{"pod", podID}}...))
	if err != nil {
		return nil, fmt.Errorf("read back jobs: %w", err)
	}
	return placesOf(found), nil
}

// assignKeySQL assigns a unique key, which was taken in this transaction, to another job. Plan: primary key lookup.
var assignKeySQL = newStatement(`update trapeze.unique_keys set job_id = @id where kind = @kind and key = @key`)

// AssignKey assigns a unique key that was taken in this transaction to a job with another id.
func AssignKey(ctx context.Context, s *Store, db DB, kind, key string, id int64) error {
	if _, err := do(ctx, s, db, assignKeySQL, args{{"kind", kind}, {"key", key}, {"id", id}}); err != nil {
		return fmt.Errorf("assign unique key %q: %w", key, err)
	}
	return nil
}
