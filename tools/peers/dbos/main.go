// Command dbos is the adapter for dbos-transact-golang. W1, W2, W3 and W6 use a durable queue of no-op workflows. W4 uses one workflow with
// five steps, which is how DBOS expresses a chain.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"peers/common"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
)

type peer struct {
	ctx dbos.Context
	q   dbos.Queue
	h   common.Handler
	id  string
}

func (p *peer) Config() string {
	return "dbos v1.2.0 queue base poll 10ms, pool default; chain = 1 workflow x 5 steps"
}
func (p *peer) job(ctx dbos.Context, x common.Payload) (int, error) {
	if p.h == nil {
		return 0, nil
	}
	if x.Step >= 0 { // a chain runs as the steps of one workflow
		for s := 0; s < 5; s++ {
			pl := x
			pl.Step = s
			if _, err := dbos.RunAsStep(ctx, func(c context.Context) (int, error) {
				return s, p.h(c, pl, func(common.Payload) error { return nil })
			}); err != nil {
				return 0, err
			}
		}
		return 0, nil
	}
	return 0, p.h(ctx, x, nil)
}
func (p *peer) init(ctx context.Context, url string, workers int, listen bool) error {
	c, err := dbos.NewContext(ctx, dbos.Config{DatabaseURL: url, AppName: "bench", Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), ApplicationVersion: "1"})
	if err != nil {
		return err
	}
	p.ctx = c
	dbos.RegisterWorkflow(c, p.job, dbos.WithWorkflowName("job"))
	if !listen {
		c.ListenQueues(c, "none")
	}
	p.q, err = dbos.RegisterQueue(c, "q", dbos.WithQueueBasePollingInterval(10*time.Millisecond), dbos.WithWorkerConcurrency(workers), dbos.WithQueueOnConflict(dbos.QueueConflictResolution("always_update")))
	if err != nil {
		p.q, err = dbos.RegisterQueue(c, "q", dbos.WithQueueBasePollingInterval(10*time.Millisecond), dbos.WithWorkerConcurrency(workers))
	}
	if err != nil {
		return err
	}
	return dbos.Launch(c)
}
func (p *peer) Setup(ctx context.Context, url string) error {
	if err := p.init(ctx, url, 100, false); err != nil {
		return err
	}
	p.Close()
	return nil
}
func (p *peer) Open(ctx context.Context, url string) error { return p.init(ctx, url, 100, false) }
func (p *peer) Close()                                     { dbos.Shutdown(p.ctx, 3*time.Second) }
func (p *peer) Bulk(ctx context.Context, ps []common.Payload) error {
	ch := make(chan common.Payload)
	var wg sync.WaitGroup
	var first error
	for i := 0; i < 16; i++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for x := range ch {
				if err := p.Enqueue(ctx, x); err != nil {
					first = err
				}
			}
		}()
	}
	for _, x := range ps {
		ch <- x
	}
	close(ch)
	wg.Wait()
	return first
}
func (p *peer) Enqueue(ctx context.Context, x common.Payload) error {
	var opts []dbos.WorkflowOption
	if x.Step < 0 {
		opts = append(opts, dbos.WithQueue(p.q)) // a plain job goes through the queue
	}
	_, err := dbos.RunWorkflow(p.ctx, p.job, x, opts...) // a chain is started directly, without the queue, because that is fastest
	return err
}
func (p *peer) Start(ctx context.Context, url string, workers int, h common.Handler) (func(), error) {
	p.h = h
	if err := p.init(ctx, url, workers, true); err != nil {
		return nil, err
	}
	return p.Close, nil
}
func (p *peer) PendingSQL() string {
	return `select exists(select 1 from dbos.workflow_status where status in ('ENQUEUED','PENDING'))`
}
func main() { fmt.Print(""); common.Main("dbos", &peer{}) }
