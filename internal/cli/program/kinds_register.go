package program

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// The demo kinds run jobs that do nothing useful in a predictable way, so that a test can inject a fault and
// count its consequences. They sleep, fail, panic, exit, spin, leak, chain, fan out and write. In the host's database, they touch only the
// table demo_rows.
//
// If a ledger is configured, every claim reports its events to this external observer in the following order:
//
//	start ─▶ (tick | effect)… ─▶ ctx_done? ─▶ end ─▶ (the finish commits)
//
// If the ledger responds with 409, the handler stops and its job fails permanently. This shows how a system other than the database can
// enforce a fencing token.

// kindOptions configures the demo kinds.
type kindOptions struct {
	// Schema is the schema of Trapeze's tables, in which demo_rows is created. The default is trapeze.
	Schema string
	// LedgerURL is the URL to which each event of a claim is posted as a JSON line. If it is empty, nothing is sent.
	LedgerURL string
}

// demoKinds holds the data shared by the handlers.
type demoKinds struct {
	ledger *ledger
	rows   string // the quoted name of the demo_rows table; empty on a remote worker
}

// registerKinds registers every demo.* kind with r and creates the demo_rows table if it does not exist. Call it before [runner.Runner.Run], on
// a migrated database.
func registerKinds(ctx context.Context, r *runner.Runner, pool *pgxpool.Pool, o kindOptions) error {
	if o.Schema == "" {
		o.Schema = "trapeze"
	}
	d := &demoKinds{ledger: newLedger(o.LedgerURL), rows: pgx.Identifier{o.Schema, "demo_rows"}.Sanitize()}
	if err := d.makeTable(ctx, pool); err != nil {
		return err
	}
	d.register(r, runner.ConcurrencyPerKey(2)) // has no effect on jobs without a key
	handle(r, d, d.tx, runner.RequiresDatabase())
	runner.HandleBatch(r, d.batch, runner.BatchSize(5), runner.BatchWait(200*time.Millisecond), runner.RequiresDatabase())
	return nil
}

// registerRemoteKinds registers every demo.* kind that needs no database with a remote worker's runner.
func registerRemoteKinds(r *runner.Runner, o kindOptions) {
	(&demoKinds{ledger: newLedger(o.LedgerURL)}).register(r)
}

// register registers the kinds that need no database, demo.sleep with the given options.
func (d *demoKinds) register(r *runner.Runner, sleep ...runner.HandleOption) {
	handle(r, d, d.noop)
	handle(r, d, d.echo)
	handle(r, d, d.result)
	handle(r, d, d.sleep, sleep...)
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

func (d *demoKinds) makeTable(ctx context.Context, pool *pgxpool.Pool) error {
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
func handle[A job.Args](r *runner.Runner, d *demoKinds, handler func(context.Context, *claim[A]) (*runner.Outcome, error), options ...runner.HandleOption) {
	runner.Handle(r, reporting(d, handler), options...)
}

// reporting returns a handler whose claims report to the ledger.
func reporting[A job.Args](d *demoKinds, handler func(context.Context, *claim[A]) (*runner.Outcome, error)) runner.Func[A] {
	return func(ctx context.Context, j *runner.Job[A]) (outcome *runner.Outcome, err error) {
		c := &claim[A]{job: j, ledger: d.ledger, line: line{
			Pod: j.PodName(), PodID: j.PodID(), Job: j.ID(), Kind: j.Kind(), Subject: j.Subject(), Lane: j.Lane(),
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
	}
}

// errRefused is returned by a handler when the ledger responds with 409.
var errRefused = job.Permanent(errors.New("refused by the ledger: a newer claim of this job exists"))

// postWithin is the timeout for one report to the ledger.
const postWithin = 10 * time.Second

// line is one report to the ledger. IDs are encoded as strings, as in all of Trapeze's JSON.
type line struct {
	Pod      string `json:"pod"`
	PodID    string `json:"pod_id"`
	Job      int64  `json:"job,string"`
	Kind     string `json:"kind"`
	Subject  string `json:"subject"`
	Lane     string `json:"lane"`
	Pipeline int64  `json:"pipeline,string"`
	Attempt  int    `json:"attempt"`
	Fence    int64  `json:"fence"`
	Event    string `json:"ev"` // start, tick, effect, ctx_done or end
	Cause    string `json:"cause"`
}

// ledger receives the reports of claims. Without a URL, it accepts everything.
type ledger struct {
	url    string
	client *http.Client
}

func newLedger(url string) *ledger {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 128 // keeps a connection for each running job, instead of opening one for every line
	return &ledger{url: url, client: &http.Client{Transport: transport, Timeout: postWithin}}
}

// post sends one line and waits for the response. It returns errRefused on 409. It sends the line even if the handler's context has been
// cancelled. It does not retry, because a line that may have arrived must not be repeated.
func (l *ledger) post(ctx context.Context, one line, event, cause string) error {
	if l.url == "" {
		return nil
	}
	one.Event, one.Cause = event, cause
	body, err := json.Marshal(one)
	if err != nil {
		return fmt.Errorf("report %s to the ledger: %w", event, err)
	}
	request, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodPost, l.url, bytes.NewReader(append(body, '\n')))
	if err != nil {
		return fmt.Errorf("report %s to the ledger: %w", event, err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := l.client.Do(request)
	if err != nil {
		return fmt.Errorf("report %s to the ledger: %w", event, err)
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<16)) // allows the connection to be reused
	switch {
	case response.StatusCode == http.StatusConflict:
		return errRefused
	case response.StatusCode >= 300:
		return fmt.Errorf("report %s to the ledger: it responded %s", event, response.Status)
	}
	return nil
}
