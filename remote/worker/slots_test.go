package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/remotepb"
	"github.com/trapeze-run/trapeze/runner"
)

// A pod that has lost contact with its worker may send another job in place of a stopped one while the stopped job's handler is still
// running.
func TestWorkerSentExcessJobs(t *testing.T) {
	is := is.New(t)
	r, err := runner.NewRemote(runner.RemoteOptions{Logger: slog.New(slog.DiscardHandler)})
	is.NoErr(err)
	t.Cleanup(r.Close)
	begun, end := make(chan int64, 3), make(chan struct{})
	var now, most atomic.Int64
	runner.HandleRaw(r, "deaf", func(_ context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		most.Store(max(most.Load(), now.Add(1)))
		defer now.Add(-1)
		begun <- j.ID()
		<-end
		return nil, errors.New("over")
	})
	w, err := New(r, Options{Server: "http://127.0.0.1:1", Slots: 1, Logger: slog.New(slog.DiscardHandler)})
	is.NoErr(err)
	for id := range int64(3) {
		w.take(&remotepb.Assignment{JobId: id + 1, Fence: 1, Kind: "deaf"})
	}
	tasks := w.list()
	first := <-begun
	for _, one := range tasks {
		if one.m.GetJobId() != first {
			one.cancel(job.ErrCancelled) // the handler never starts, because its job is cancelled before it gets a slot
			break
		}
	}
	end <- struct{}{}
	second := <-begun
	is.True(second != first)
	end <- struct{}{}
	for _, one := range tasks {
		one.lose(job.ErrLeaseLost) // otherwise, the task would keep repeating its report
	}
	close(end)
	w.working.Wait()
	is.Equal(most.Load(), int64(1))
	is.Equal(len(begun), 0)
}
