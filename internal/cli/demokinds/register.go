package demokinds

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Options configure the demo kinds.
type Options struct {
	// Schema is the schema of Trapeze's tables, in which demo_rows is created. The default is trapeze.
	Schema string
	// LedgerURL is the URL to which each event of a claim is posted as a JSON line. If it is empty, nothing is sent.
	LedgerURL string
}

// demo holds the data shared by the handlers.
type demo struct {
	ledger *ledger
	rows   string // the quoted name of the demo_rows table; empty on a remote worker
}

// Register registers every demo.* kind with r and creates the demo_rows table if it does not exist. Call it before [runner.Runner.Run], on
// a migrated database.
func Register(ctx context.Context, r *runner.Runner, pool *pgxpool.Pool, o Options) error {
	if o.Schema == "" {
		o.Schema = "trapeze"
	}
	d := &demo{ledger: newLedger(o.LedgerURL), rows: pgx.Identifier{o.Schema, "demo_rows"}.Sanitize()}
	if err := d.makeTable(ctx, pool); err != nil {
		return err
	}
	d.register(r)
	handle(r, d, d.tx, runner.InDatabase())
	return nil
}

// RegisterRemote registers every demo.* kind that needs no database with a remote worker's runner.
func RegisterRemote(r *runner.Runner, o Options) { (&demo{ledger: newLedger(o.LedgerURL)}).register(r) }

// register registers the kinds that need no database.
func (d *demo) register(r *runner.Runner) {
	handle(r, d, d.noop)
	handle(r, d, d.echo)
	handle(r, d, d.result)
	handle(r, d, d.sleep)
	handle(r, d, d.progress)
	handle(r, d, d.fail)
	handle(r, d, d.flaky)
	handle(r, d, d.panics)
	handle(r, d, d.exit)
	handle(r, d, d.goexit)
	handle(r, d, d.spin)
	handle(r, d, d.block)
	handle(r, d, d.leak)
	handle(r, d, d.hog)
	handle(r, d, d.chain)
	handle(r, d, d.fanOut)
	handle(r, d, d.snooze)
	handle(r, d, d.effect)
}

// tableLock is the key of a lock that prevents pods that start together from creating the table concurrently, which "if not exists" does
// not prevent.
const tableLock = 420023

func (d *demo) makeTable(ctx context.Context, pool *pgxpool.Pool) error {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, tableLock); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `create table if not exists `+d.rows+` (job_id bigint not null, fence bigint not null, n integer not null)`)
		return err
	})
	if err != nil {
		return fmt.Errorf("make table %s for the demo kinds: %w", d.rows, err)
	}
	return nil
}

// claim represents a claim of a demo job, with the template of the lines that are sent to the ledger.
type claim[A job.Args] struct {
	job    *runner.Job[A]
	ledger *ledger
	line   line
}

// post reports an event to the ledger. For start, cause states how the job was claimed; for ctx_done and end, it states why the claim
// ended.
func (c *claim[A]) post(ctx context.Context, event, cause string) error {
	return c.ledger.post(ctx, c.line, event, cause)
}

// handle registers a kind whose claims report their start, their context's cancellation, and their end.
func handle[A job.Args](r *runner.Runner, d *demo, handler func(context.Context, *claim[A]) (*runner.Outcome, error), options ...runner.HandleOption) {
	runner.Handle(r, func(ctx context.Context, j *runner.Job[A]) (outcome *runner.Outcome, err error) {
		c := &claim[A]{job: j, ledger: d.ledger, line: line{
			Pod: j.PodName(), PodID: j.Boot(), Job: j.ID(), Kind: j.Kind(), Subject: j.Subject(), Lane: j.Lane(),
			Pipeline: j.PipelineID(), Attempt: j.Attempt(), Fence: j.Fence(),
		}}
		if err := c.post(ctx, "start", j.Path()); err != nil {
			return nil, err
		}
		reported := make(chan struct{})
		untell := context.AfterFunc(ctx, func() {
			defer close(reported)
			_ = c.post(ctx, "ctx_done", context.Cause(ctx).Error())
		})
		cause := "panic or exit of the goroutine" // replaced when the handler returns
		defer func() {
			if !untell() {
				<-reported // end must be reported after ctx_done
			}
			if failed := c.post(ctx, "end", cause); failed != nil && err == nil {
				err = failed
			}
		}()
		outcome, err = handler(ctx, c)
		cause = "ok"
		if err != nil {
			cause = err.Error()
		}
		return outcome, err
	}, options...)
}
