// Command gue is the adapter for github.com/vgarvardt/gue.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"peers/common"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/vgarvardt/gue/v5"
	"github.com/vgarvardt/gue/v5/adapter/pgxv5"
)

type peer struct {
	pool *pgxpool.Pool
	c    *gue.Client
}

const schema = `CREATE TABLE IF NOT EXISTS gue_jobs (job_id TEXT NOT NULL PRIMARY KEY, priority SMALLINT NOT NULL,
 run_at TIMESTAMPTZ NOT NULL, job_type TEXT NOT NULL, args BYTEA NOT NULL, error_count INTEGER NOT NULL DEFAULT 0,
 last_error TEXT, queue TEXT NOT NULL, created_at TIMESTAMPTZ NOT NULL, updated_at TIMESTAMPTZ NOT NULL);
 CREATE INDEX IF NOT EXISTS idx_gue_jobs_selector ON gue_jobs (queue, run_at, priority);`

func poll() int { return common.Env("GUE_POLL", 50) }
func (p *peer) Config() string {
	return fmt.Sprintf("gue v5.7.0 pool workers, PollInterval=%dms, strategy run_at", poll())
}
func (p *peer) Setup(ctx context.Context, url string) error { common.Exec(url, schema); return nil }
func (p *peer) Open(ctx context.Context, url string) (err error) {
	p.pool = common.Pool(ctx, url, 4)
	p.c, err = gue.NewClient(pgxv5.NewConnPool(p.pool))
	return
}
func (p *peer) Close() { p.pool.Close() }
func job(x common.Payload) *gue.Job {
	b, _ := json.Marshal(x)
	return &gue.Job{Type: "noop", Queue: "q", Args: b}
}
func (p *peer) Bulk(ctx context.Context, ps []common.Payload) error {
	js := make([]*gue.Job, len(ps))
	for i, x := range ps {
		js[i] = job(x)
	}
	return p.c.EnqueueBatch(ctx, js)
}
func (p *peer) Enqueue(ctx context.Context, x common.Payload) error { return p.c.Enqueue(ctx, job(x)) }
func (p *peer) Start(ctx context.Context, url string, workers int, h common.Handler) (func(), error) {
	pool := common.Pool(ctx, url, int32(workers+4))
	c, err := gue.NewClient(pgxv5.NewConnPool(pool))
	if err != nil {
		return nil, err
	}
	p.pool, p.c = pool, c
	wm := gue.WorkMap{"noop": func(ctx context.Context, j *gue.Job) error {
		var x common.Payload
		if err := json.Unmarshal(j.Args, &x); err != nil {
			return err
		}
		return h(ctx, x, func(n common.Payload) error { return c.EnqueueTx(ctx, job(n), j.Tx()) })
	}}
	wp, err := gue.NewWorkerPool(c, wm, workers, gue.WithPoolQueue("q"), gue.WithPoolPollInterval(time.Duration(poll())*time.Millisecond), gue.WithPoolPollStrategy(gue.RunAtPollStrategy))
	if err != nil {
		return nil, err
	}
	cctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { wp.Run(cctx); close(done) }()
	return func() { cancel(); <-done; pool.Close() }, nil
}
func (p *peer) PendingSQL() string { return `select exists(select 1 from gue_jobs)` }
func main()                        { common.Main("gue", &peer{}) }
