// Command worker is the program shown in docs/remote-workers.md: a remote worker with one handler.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/trapeze-run/trapeze/remote/worker"
	"github.com/trapeze-run/trapeze/runner"
)

type Render struct{ Scene string }

func (Render) Kind() string { return "render" }

func render(ctx context.Context, j *runner.Job[Render]) (*runner.Outcome, error) {
	return runner.Done(j.Args.Scene + ".png"), nil
}

func main() {
	r, err := runner.NewRemote(runner.RemoteOptions{})
	if err != nil {
		log.Fatal(err)
	}
	runner.Handle(r, render)
	w, err := worker.New(r, worker.Options{Server: os.Getenv("TRAPEZE_SERVER"), Token: os.Getenv("TRAPEZE_TOKEN")})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := w.Run(ctx); err != nil { // the pods rejected the worker
		log.Fatal(err)
	}
}
