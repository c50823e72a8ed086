package runner

import (
	"context"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// Claims start at the low-water mark, so they miss any job before it. When the mark expires, a full poll must follow immediately rather
// than after the poll interval.
func TestJobBehindLowWaterMark(t *testing.T) {
	t.Parallel()
	r := reviewRunner(t, map[string]Func[Raw]{"k": func(context.Context, *Job[Raw]) (*Outcome, error) { return nil, nil }})
	const look = 20 * time.Millisecond
	future := map[string][]store.Mark{job.DefaultLane: {{Rank: -job.DefaultPriority, Since: time.Now().Add(time.Hour)}}}
	r.pod.Marks.Apply(future, nil, look, r.opts.PollInterval, r.pod.Wake)
	began := time.Now()
	ids, err := r.EnqueueMany(t.Context(), []job.Args{Raw{Name: "k"}})
	if err != nil {
		t.Fatal(err)
	}
	pgtest.WaitFor(t, 8*time.Second, "the job has ended", func() bool {
		j, err := r.GetJob(t.Context(), ids[0])
		return err == nil && j.State == job.Succeeded
	})
	if waited := time.Since(began); waited > r.opts.PollInterval/2 {
		t.Errorf("waited %s, until the next poll", waited)
	}
}

// Another process admits a job whose ready time lies before this pod's mark. Its notification lowers the mark.
func TestAdmissionBehindLowWaterMark(t *testing.T) {
	t.Parallel()
	r := reviewRunner(t, map[string]Func[Raw]{"k": func(ctx context.Context, j *Job[Raw]) (*Outcome, error) {
		if string(j.Args.JSON) == "0" {
			<-ctx.Done() // on a slow machine, the first job can start before it is cancelled
		}
		return nil, nil
	}})
	other, err := New(r.pod.Commands.Pool(), Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	future := map[string][]store.Mark{job.DefaultLane: {{Rank: -job.DefaultPriority, Since: time.Now().Add(time.Hour)}}}
	r.pod.Marks.Apply(future, nil, time.Hour, time.Hour, r.pod.Wake)
	var ids []int64
	for i := range 2 {
		made, err := other.Enqueue(t.Context(), Raw{Name: "k", JSON: []byte(strconv.Itoa(i))}, AllowUnregistered(), Subject("s"))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, made.ID)
	}
	if _, err := other.Admin("test").Cancel(t.Context(), ids[0]); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	pgtest.WaitFor(t, 8*time.Second, "the job has ended", func() bool {
		j, err := other.GetJob(t.Context(), ids[1])
		return err == nil && j.State == job.Succeeded
	})
	if waited := time.Since(began); waited > r.opts.PollInterval/2 {
		t.Errorf("waited %s, until the next poll", waited)
	}
}

// If the database's history changes, the pod drops state that may depend on lost commits: granted slots and low-water marks.
func TestGrantsAfterHistoryChange(t *testing.T) {
	t.Parallel()
	r, err := New(pgtest.Unconnected(t), Options{Logger: slog.New(slog.DiscardHandler)}) // Run is not called, so no heartbeat interferes
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	three, now := 3, time.Now()
	r.pod.Lanes.Apply(store.Beat{Lanes: []store.Lane{{Name: "limited", Enabled: true, Slots: &three}}})
	r.pod.Lanes.Unused(true, time.Minute, now)
	asks := r.pod.Lanes.Asks([]string{"limited"}, now)
	r.pod.Lanes.Settle(asks, []store.Slots{{Lane: "limited", Held: 3}}, now, func() bool { return true })
	granted := func() bool {
		free := r.pod.Lanes.Reserve("limited")
		if free {
			r.pod.Lanes.Release("limited", 1)
		}
		return free
	}
	r.pod.Marks.Apply(map[string][]store.Mark{"marked": {{Since: now}}}, nil, time.Second, time.Minute, func() {})
	marked := func() bool { return len(r.pod.Marks.ForClaim("marked")) > 0 }
	r.pod.HeedHistory("one")
	r.pod.HeedHistory("one")
	if !granted() || !marked() {
		t.Error("grants or marks were dropped although the history is the same")
	}
	r.pod.HeedHistory("another")
	if granted() {
		t.Error("slots granted by a table that may lack the latest commits are still held")
	}
	if marked() {
		t.Error("claims still use a mark of the previous history")
	}
}
