package worker_test

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/trapeze-run/trapeze/remote/worker"
	"github.com/trapeze-run/trapeze/runner"
)

type Render struct {
	Scene string `json:"scene"`
}

func (Render) Kind() string { return "render" }

func render(ctx context.Context, j *runner.Job[Render]) (*runner.Outcome, error) {
	for done := range int64(100) {
		if err := ctx.Err(); err != nil { // the job was cancelled, or the worker is stopping
			return nil, err
		}
		j.Progress(done+1, 100)
	}
	return runner.Done(j.Args.Scene + ".png"), nil
}

// This is a complete program. To run it, set TRAPEZE_SERVER and TRAPEZE_TOKEN, and submit jobs of kind render.
func Example() {
	r, err := runner.NewRemote(runner.RemoteOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	runner.Handle(r, render, runner.Retry(3))
	w, err := worker.New(r, worker.Options{Server: os.Getenv("TRAPEZE_SERVER"), Token: os.Getenv("TRAPEZE_TOKEN"), Slots: 2})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := w.Run(ctx); err != nil { // the pods rejected the worker
		log.Fatal(err)
	}
}
