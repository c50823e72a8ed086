package runner

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/propagation"

	schemas "github.com/trapeze-run/trapeze/internal/schema"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// SQL is a transaction or connection of database/sql, or of a library built on it. Examples are *sql.Tx, *sqlx.Tx, the Tx in a bun.Tx, the
// Statement.ConnPool of a *gorm.DB, and an ent.Tx generated with the feature sql/execquery enabled.
type SQL interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// enqueueSQL submits a job by calling the schema's enqueue function. All arguments are passed as text, which every driver sends in the same
// way.
const enqueueSQL = `select id, pipeline_id, coalesce(state, ''), duplicate, replaced from %s.enqueue(kind => $1::text, args => $2::text::json, lane => $3::text,
	subject => $4::text, priority => $5::text::integer, run_at => now() + $6::text::interval, idempotency_key => $7::text, unique_key => $8::text,
	unique_while => $9::text, max_attempts => $10::text::integer, chain => $11::text::json, submitter => $12::text,
	pipeline => $13::text, needs_approval => $14::text::boolean, traceparent => $15::text, key => $16::text,
	ordered => $17::text::boolean, start_by => now() + $18::text::interval, replace => $19::text::boolean, debounce => $20::text::interval,
	debounce_max => $21::text::interval, throttle => $22::text::interval)`

// EnqueueSQL submits a job in a database/sql transaction, by calling the enqueue function of Trapeze's schema. The job exists if and only
// if the transaction commits, and the commit notifies the listening pods. EnqueueSQL needs no [Runner] and no privilege other than
// permission to execute that function. The kind need not be registered here. The job continues the trace of ctx. Without [Submitter], the
// submitter is the database's session_user; setting another one requires the INSERT privilege on Trapeze's jobs table.
//
// It returns [job.ErrUnknownLane], [job.ErrInvalidArgs], [job.ErrTooLarge], [job.ErrInvalid], [job.ErrKeyReused] or [job.ErrKeyHeld]. After an error, the
// caller's transaction can only be rolled back, as after any PostgreSQL error.
func EnqueueSQL(ctx context.Context, tx SQL, args job.Args, options ...EnqueueOption) (s Submitted, err error) {
	w, schema, err := encodeForSQL(args, options)
	if err != nil {
		return s, err
	}
	delay, approval := interval(w.Delay), strconv.FormatBool(w.Approval)
	trace := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, trace)
	rows, err := tx.QueryContext(ctx, fmt.Sprintf(enqueueSQL, schema), w.Kind, string(w.Args), orNull(w.Lane), w.Subject, digits(w.Priority),
		delay, orNull(w.IdempotencyKey), w.UniqueKey, w.UniqueWhile, digits(w.MaxAttempts), orNull(string(w.Plan)), orNull(w.Submitter),
		orNull(w.Pipeline), approval, orNull(trace["traceparent"]), w.Key,
		strconv.FormatBool(w.Ordered), interval(w.StartBy), strconv.FormatBool(w.Replace), interval(w.Debounce), interval(w.DebounceMax), interval(w.Throttle))
	if err != nil {
		return s, work.SQLError(err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := rows.Scan(&s.ID, &s.PipelineID, &s.State, &s.Duplicate, &s.Replaced); err != nil {
			return Submitted{}, work.SQLError(err)
		}
	}
	return s, work.SQLError(rows.Err())
}

// encodeForSQL encodes a job with its next steps, and performs the checks that need no database.
func encodeForSQL(args job.Args, options []EnqueueOption) (w *work.Submission, schema string, err error) {
	schema = "trapeze"
	w, err = encodeSubmission(args, append(options[:len(options):len(options)], enqueueOption(func(s *submission) {
		schema = cmp.Or(s.schema, schema)
		s.schema = ""
	})))
	if err != nil {
		return nil, "", err
	}
	if err := w.Validate(); err != nil {
		return nil, "", fmt.Errorf("%w (kind %s)", err, w.Kind)
	}
	if w.When != job.AfterSuccess {
		return nil, "", fmt.Errorf("%w: Always is an option of a join (kind %s)", job.ErrInvalid, w.Kind)
	}
	if err := schemas.ValidName(schema); err != nil {
		return nil, "", fmt.Errorf("%w: InSchema: %w", job.ErrInvalid, err)
	}
	return w, schema, w.EncodePlan()
}

// interval formats a duration as a PostgreSQL interval, and returns nil if it is 0.
func interval(d time.Duration) *string {
	if d <= 0 {
		return nil
	}
	micros := max(d.Microseconds(), 1)
	// PostgreSQL 14 accepts at most 2³¹ units in an interval field, so microseconds alone would cover only 36 minutes.
	text := fmt.Sprintf("%d seconds %d microseconds", micros/1e6, micros%1e6)
	return &text
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func digits(n *int) *string {
	if n == nil {
		return nil
	}
	s := strconv.Itoa(*n)
	return &s
}
