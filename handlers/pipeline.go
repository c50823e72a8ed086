package handlers

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/runner"
)

// Options configures the pipeline. The zero value is usable. Pass the same options to [Setup], [Register] and [ReadTotals].
type Options struct {
	// Schema is the schema of the example's tables, which is separate from Trapeze's. The default is co2.
	Schema string
	// Dir is the directory from which files are read; a path that leads outside it is rejected. If Dir is empty, any path is allowed, and
	// relative paths start at the working directory.
	Dir string
	// BatchRows is the number of rows in an ingest transaction. The default is 1000.
	BatchRows int
	// BatchPause is a pause after every batch, which makes the ingest slow enough to watch. The default is 0.
	BatchPause time.Duration
	// Fenced makes the handlers write in separate transactions that are guarded by the job's fence, instead of in the job's own commits.
	// Set it for lanes with an engine other than PostgreSQL. The default is false.
	Fenced bool
	// OnRun is called after each run of a handler in this process with the run's start and end, regardless of the outcome. It must be safe
	// for concurrent use. It can be nil.
	OnRun func(kind string, began, ended time.Time)
}

// pipeline holds the data shared by the four handlers.
type pipeline struct {
	Options
	pool *pgxpool.Pool
}

var validSchema = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,47}$`)

func newPipeline(pool *pgxpool.Pool, o Options) (*pipeline, error) {
	if o.Schema == "" {
		o.Schema = "co2"
	}
	if o.BatchRows <= 0 {
		o.BatchRows = 1000
	}
	if !validSchema.MatchString(o.Schema) {
		return nil, fmt.Errorf("schema %q of the example: want %s", o.Schema, validSchema)
	}
	return &pipeline{Options: o, pool: pool}, nil
}

var schemaName = regexp.MustCompile(`\bco2\b`)

// in returns a statement with the schema co2 replaced by the configured one.
func (p *pipeline) in(sql string) string { return schemaName.ReplaceAllString(sql, p.Schema) }

// retry is the policy for temporary errors, such as those caused by a restarting or unresponsive database. Errors that would recur with the
// same input are marked permanent where they occur.
var retry = runner.Retry(8, runner.Backoff{Base: 500 * time.Millisecond, Cap: 15 * time.Second})

// Register registers the four kinds. Call it before r.Run, with the pool that was passed to [Setup]. Unless Options.Fenced is set, the
// handlers write in the commit that ends the job, so Register panics if r was created by [runner.NewRemote].
func Register(r *runner.Runner, pool *pgxpool.Pool, o Options) error {
	p, err := newPipeline(pool, o)
	if err != nil {
		return err
	}
	options := []runner.HandleOption{retry}
	if !o.Fenced {
		options = append(options, runner.InDatabase())
	}
	runner.Handle(r, timed(p, p.ingest), options...)
	runner.Handle(r, timed(p, p.syncFactors), options...)
	runner.Handle(r, timed(p, p.recalculate), options...)
	runner.Handle(r, timed(p, p.total), options...)
	return nil
}

// timed wraps a handler so that OnRun is called after each run.
func timed[A runner.Args](p *pipeline, handle runner.Func[A]) runner.Func[A] {
	if p.OnRun == nil {
		return handle
	}
	return func(ctx context.Context, j *runner.Job[A]) (*runner.Outcome, error) {
		began := time.Now()
		defer func() { p.OnRun(j.Kind(), began, time.Now()) }()
		return handle(ctx, j)
	}
}

// pause waits for Options.BatchPause or until ctx is cancelled.
func (p *pipeline) pause(ctx context.Context) error {
	if p.BatchPause <= 0 {
		return nil
	}
	timer := time.NewTimer(p.BatchPause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
