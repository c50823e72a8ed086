package runner

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"

	"go.opentelemetry.io/otel/propagation"

	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
)

// SQL is a transaction or a connection of database/sql, or of a library on top of it: *sql.Tx, *sqlx.Tx, the Tx in a bun.Tx, the
// Statement.ConnPool of a *gorm.DB, and an ent.Tx that is generated with the feature sql/execquery.
type SQL interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// enqueueSQL submits a job by the function enqueue of the schema. All arguments are texts, which every driver sends in the same way.
const enqueueSQL = `select id, pipeline_id, coalesce(state, ''), duplicate from %s.enqueue(kind => $1::text, args => $2::text::json, lane => $3::text,
	subject => $4::text, priority => $5::text::integer, run_at => now() + $6::text::interval, idempotency_key => $7::text, unique_key => $8::text,
	unique_while => $9::text, max_attempts => $10::text::integer, chain => $11::text::json, submitter => $12::text,
	pipeline => $13::text, needs_approval => $14::text::boolean, traceparent => $15::text)`

// EnqueueSQL submits a job in a transaction of database/sql, by the function enqueue of Trapeze's schema. The job exists if and only if the
// transaction commits, and the commit notifies the pods that listen. It needs no [Runner], and no privilege except to execute that
// function. The kind need not be known here. The job continues the trace of ctx. Without [Submitter] the submitter is the database's
// session_user; setting another one requires the privilege to insert into Trapeze's table jobs.
//
// Errors: [job.ErrUnknownLane], [job.ErrInvalidArgs], [job.ErrTooLarge], [job.ErrInvalid], [job.ErrKeyReused]. After one of them the
// caller's transaction can only be rolled back, as after any error of PostgreSQL.
func EnqueueSQL(ctx context.Context, tx SQL, args job.Args, options ...EnqueueOption) (s Submitted, err error) {
	w, schema, err := encodeForSQL(args, options)
	if err != nil {
		return s, err
	}
	delay, approval := (*string)(nil), strconv.FormatBool(w.Approval)
	if w.Delay > 0 {
		micros := max(w.Delay.Microseconds(), 1)
		// PostgreSQL 14 takes at most 2³¹ units in a field of an interval, so that its microseconds end after 36 minutes.
		text := fmt.Sprintf("%d seconds %d microseconds", micros/1e6, micros%1e6)
		delay = &text
	}
	trace := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, trace)
	rows, err := tx.QueryContext(ctx, fmt.Sprintf(enqueueSQL, schema), w.Kind, string(w.Args), orNull(w.Lane), w.Subject, digits(w.Priority),
		delay, orNull(w.IdempotencyKey), w.UniqueKey, w.UniqueWhile, digits(w.MaxAttempts), orNull(string(w.Plan)), orNull(w.Submitter),
		orNull(w.Pipeline), approval, orNull(trace["traceparent"]))
	if err != nil {
		return s, work.SQLError(err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := rows.Scan(&s.ID, &s.PipelineID, &s.State, &s.Duplicate); err != nil {
			return Submitted{}, work.SQLError(err)
		}
	}
	return s, work.SQLError(rows.Err())
}

// encodeForSQL encodes a job with its next steps, and makes the checks that need no database.
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
	if !validSchema.MatchString(schema) {
		return nil, "", fmt.Errorf("%w: InSchema(%q), want %s", job.ErrInvalid, schema, validSchema)
	}
	return w, schema, w.EncodePlan()
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
