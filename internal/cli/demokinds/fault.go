package demokinds

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// These kinds misbehave on purpose.
type (
	// fail returns an error whose text is Message followed by Bytes, which need not be valid UTF-8.
	fail struct {
		Message   string `json:"message"`
		Bytes     []byte `json:"bytes_b64"`
		Permanent bool   `json:"permanent"`
	}

	// flaky fails with probability P, between 0 and 1.
	flaky struct {
		P float64 `json:"p"`
	}

	// panics panics in its handler. If Where is "goroutine", it panics in another goroutine, which crashes the process.
	panics struct {
		Where string `json:"where"`
		Bytes []byte `json:"bytes_b64"`
	}

	exit struct {
		Code int `json:"code"`
	}

	goexit struct{}

	// spin keeps a CPU busy for MS milliseconds and ignores its context. If MS is 0, it spins forever.
	spin struct {
		MS int64 `json:"ms"`
	}

	// block blocks forever and ignores its context.
	block struct{}

	// leak leaks N goroutines, or 1 if N is not set.
	leak struct {
		N int `json:"n"`
	}

	// hog holds MB MiB of memory while it is running.
	hog struct {
		MB int `json:"mb"`
	}
)

func (fail) Kind() string   { return "demo.fail" }
func (flaky) Kind() string  { return "demo.flaky" }
func (panics) Kind() string { return "demo.panic" }
func (exit) Kind() string   { return "demo.exit" }
func (goexit) Kind() string { return "demo.goexit" }
func (spin) Kind() string   { return "demo.spin" }
func (block) Kind() string  { return "demo.block" }
func (leak) Kind() string   { return "demo.leak" }
func (hog) Kind() string    { return "demo.hog" }

func (d *demo) fail(_ context.Context, c *claim[fail]) (*runner.Outcome, error) {
	message := c.job.Args.Message + string(c.job.Args.Bytes)
	if message == "" {
		message = "failed on request"
	}
	err := errors.New(message)
	if c.job.Args.Permanent {
		err = job.Permanent(err)
	}
	return nil, err
}

func (d *demo) flaky(_ context.Context, c *claim[flaky]) (*runner.Outcome, error) {
	if rand.Float64() < c.job.Args.P { // #nosec G404 -- a demo job fails by chance
		return nil, fmt.Errorf("failed with probability %g", c.job.Args.P)
	}
	return nil, nil
}

func (d *demo) panics(ctx context.Context, c *claim[panics]) (*runner.Outcome, error) {
	message := "panic on request" + string(c.job.Args.Bytes)
	switch c.job.Args.Where {
	case "", "handler":
		panic(message)
	case "goroutine":
		go panic(message)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return nil, job.Permanent(fmt.Errorf("%w: where %q, want handler or goroutine", job.ErrInvalidArgs, c.job.Args.Where))
}

func (d *demo) exit(_ context.Context, c *claim[exit]) (*runner.Outcome, error) {
	os.Exit(c.job.Args.Code)
	return nil, nil
}

func (d *demo) goexit(context.Context, *claim[goexit]) (*runner.Outcome, error) {
	runtime.Goexit()
	return nil, nil
}

func (d *demo) spin(_ context.Context, c *claim[spin]) (*runner.Outcome, error) {
	length := time.Duration(c.job.Args.MS) * time.Millisecond
	for began := time.Now(); length == 0 || time.Since(began) < length; {
	}
	return nil, nil
}

func (d *demo) block(context.Context, *claim[block]) (*runner.Outcome, error) {
	select {}
}

func (d *demo) leak(_ context.Context, c *claim[leak]) (*runner.Outcome, error) {
	for range max(c.job.Args.N, 1) {
		go func() { select {} }()
	}
	return nil, nil
}

func (d *demo) hog(_ context.Context, c *claim[hog]) (*runner.Outcome, error) {
	const mebibyte = 1 << 20
	held := make([]byte, max(c.job.Args.MB, 0)*mebibyte)
	for i := 0; i < len(held); i += 4096 {
		held[i] = 1 // pages that are never written would not use memory
	}
	runtime.KeepAlive(held)
	return runner.Done(map[string]int{"mb": c.job.Args.MB}), nil
}
