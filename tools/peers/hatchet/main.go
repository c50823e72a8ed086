// Command hatchet is the adapter for github.com/hatchet-dev/hatchet. Its engine, including the message queue, runs inside this process and
// uses the benchmark's PostgreSQL. A chain is one workflow with five tasks, each the parent of the next, which is how Hatchet expresses a
// chain.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"peers/common"

	_ "github.com/hatchet-dev/hatchet/embed"
	"github.com/hatchet-dev/hatchet/pkg/client"
	hatchet "github.com/hatchet-dev/hatchet/sdks/go"
	"github.com/rs/zerolog"
)

const steps = 5

type peer struct {
	c    *hatchet.Client
	bulk client.AdminClient
	w    *hatchet.Worker
	h    common.Handler
}

func conns() int { return common.Env("CONNS", 20) }

func (p *peer) Config() string {
	return fmt.Sprintf("hatchet v0.98.9 embedded, no API server, pool=%d, gRPC rate limit raised; the engine is up before the clock starts; chain = 1 workflow x %d tasks",
		conns(), steps)
}

// boot starts the engine and registers the workflows. It does not start the worker.
func (p *peer) boot(url string) (err error) {
	for name, value := range map[string]string{
		"DATABASE_MAX_CONNS":     strconv.Itoa(conns()),
		"SERVER_GRPC_RATE_LIMIT": "1000000", // the default is 1,000 calls per second
		"SERVER_LOGGER_LEVEL":    "error",
	} {
		if os.Getenv(name) == "" {
			os.Setenv(name, value)
		}
	}
	if p.c, err = hatchet.NewClient(hatchet.WithEmbeddedPostgres(url, hatchet.WithoutEmbeddedAPI(), hatchet.WithEmbeddedLogLevel("error"))); err != nil {
		return err
	}
	quiet := zerolog.Nop()
	// The SDK's client cannot start many runs with one call, because RunMany makes one call per run.
	plain, err := client.New(client.WithLogger(&quiet))
	if err != nil {
		return err
	}
	p.bulk = plain.Admin()
	task := func(step int) func(hatchet.Context, common.Payload) (struct{}, error) {
		return func(ctx hatchet.Context, x common.Payload) (struct{}, error) {
			if step >= 0 {
				x.Step = step
			}
			return struct{}{}, p.h(ctx, x, func(common.Payload) error { return nil })
		}
	}
	noop := p.c.NewStandaloneTask("noop", task(-1))
	chain := p.c.NewWorkflow("chain")
	before := chain.NewTask("step0", task(0))
	for i := 1; i < steps; i++ {
		before = chain.NewTask(fmt.Sprintf("step%d", i), task(i), hatchet.WithParents(before))
	}
	p.w, err = p.c.NewWorker("bench", hatchet.WithWorkflows(noop, chain), hatchet.WithSlots(common.Env("WORKERS", 100)), hatchet.WithLogger(&quiet))
	return err
}

func (p *peer) Setup(_ context.Context, url string) error { return p.boot(url) }

func (p *peer) Open(context.Context, string) error { return nil }

// Close stops the engine in W6, where other processes take over. In the other workloads, the engine keeps running for the worker that
// starts next.
func (p *peer) Close() {
	if os.Getenv("WORKLOAD") == "W6" {
		p.end()
	}
}

func (p *peer) end() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := p.c.Close(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "close:", err)
	}
}

func workflow(x common.Payload) string {
	if x.Step < 0 {
		return "noop"
	}
	return "chain"
}

// Bulk returns once the runs are stored in the database as messages. If no worker is running, the engine creates their tasks later.
func (p *peer) Bulk(_ context.Context, ps []common.Payload) error {
	runs := make([]*client.WorkflowRun, len(ps))
	for i, x := range ps {
		runs[i] = &client.WorkflowRun{Name: workflow(x), Input: x}
	}
	_, err := p.bulk.BulkRunWorkflow(runs)
	return err
}

func (p *peer) Enqueue(ctx context.Context, x common.Payload) error {
	_, err := p.c.RunNoWait(ctx, workflow(x), x)
	return err
}

func (p *peer) Start(_ context.Context, _ string, _ int, h common.Handler) (func(), error) {
	p.h = h
	stop, err := p.w.Start()
	if err != nil {
		return nil, err
	}
	return func() {
		if err := stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop:", err)
		}
		p.end()
	}, nil
}

func (p *peer) PendingSQL() string {
	return `select exists (select from v1_queue_item) or exists (select from v1_task_runtime)
		or exists (select from "MessageQueueItem" where "queueId" = 'task_processing_queue_v2')`
}

func main() {
	p := &peer{}
	if os.Getenv("ROLE") == "worker" {
		if err := p.boot(os.Getenv("DATABASE_URL")); err != nil {
			fmt.Fprintln(os.Stderr, "FATAL", err)
			os.Exit(1)
		}
	}
	common.Main("hatchet", p)
}
