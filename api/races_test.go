package api_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// race calls one(i) for each i below races, with at most six concurrent calls. In each call, two operations overlap; i determines which of
// them starts later.
func race(t *testing.T, one func(i int)) {
	t.Helper()
	const beside = 6
	var running sync.WaitGroup
	for k := range beside {
		running.Go(func() {
			for i := k; i < races && !t.Failed(); i += beside {
				one(i)
			}
		})
	}
	running.Wait()
}

// together runs both functions concurrently. i determines which one starts later, and by how much. The delay only varies the overlap; it
// does not synchronize the functions.
func together(i int, first, second func()) {
	if i%2 == 1 {
		first, second = second, first
	}
	var both sync.WaitGroup
	both.Go(first)
	both.Go(func() {
		<-time.After(time.Duration(i%17) * 200 * time.Microsecond)
		second()
	})
	both.Wait()
}

// fine fails the test if the request got no response or a server error.
func fine(t *testing.T, a answer) {
	t.Helper()
	if a.status >= 500 || a.status == 0 {
		t.Errorf("answered %d: %s", a.status, a.text)
	}
}

// last waits until a job has ended and returns it.
func (h *host) last(id string) (j job.JobRow) {
	h.t.Helper()
	number, _ := strconv.ParseInt(id, 10, 64)
	pgtest.Wait(h.t, "job "+id+" has ended", func() bool {
		var err error
		j, err = h.GetJob(h.t.Context(), number)
		return err == nil && j.State.Terminal()
	})
	return j
}

// quietly fails the test if PostgreSQL had to break a deadlock.
func (h *host) quietly() {
	h.t.Helper()
	var deadlocks int
	err := inside.Of(h.Runner).Store.Pool().QueryRow(h.t.Context(), `select deadlocks from pg_stat_database where datname = current_database()`).Scan(&deadlocks)
	if err != nil || deadlocks > 0 {
		h.t.Errorf("%d deadlocks (%v)", deadlocks, err)
	}
}

func TestCancelDuringFinishThroughAPI(t *testing.T) {
	t.Parallel()
	h := newHost(t, api.Options{})
	var mu sync.Mutex
	said := map[int]int{}
	race(t, func(i int) {
		id := h.submit(`{"kind":"hold"}`)
		held := h.held(id)
		var a answer
		together(i, func() { close(held) }, func() { a = h.send("POST", "/admin/workers/jobs/"+id+"/cancel", "") })
		fine(t, a)
		j := h.last(id)
		want := job.Cancelled
		if a.status == http.StatusConflict {
			want = job.Succeeded
		}
		if j.State != want || a.status != http.StatusConflict && a.status != http.StatusAccepted && a.status != http.StatusOK {
			t.Errorf("job %s ended %s, and the cancel was answered %d %s", id, j.State, a.status, a.text)
		}
		mu.Lock()
		said[a.status]++
		mu.Unlock()
	})
	h.quietly()
	t.Logf("answers: %v", said)
}

// waiting submits a job without notifying the pod, as another process might. The job stays pending until wake triggers a claim.
func (h *host) waiting(i int, priority int) (id string, wake func()) {
	h.t.Helper()
	s := inside.Of(h.Runner).Store
	ids, err := s.NewIDs(h.t.Context(), 1)
	if err == nil {
		_, err = s.Enqueue(h.t.Context(), uuid.NewString(), []store.NewJob{{ID: ids[0], Kind: "echo", Lane: job.DefaultLane,
			Args: []byte(fmt.Sprint(i)), Priority: priority}})
	}
	if err != nil {
		h.t.Error(err)
		return "0", func() {}
	}
	return strconv.FormatInt(ids[0], 10), func() { _ = s.Notify(context.WithoutCancel(h.t.Context()), s.Pool()) }
}

func TestCancelDuringClaimThroughAPI(t *testing.T) {
	t.Parallel()
	h := newHost(t, api.Options{})
	var mu sync.Mutex
	said := map[string]int{}
	race(t, func(i int) {
		id, wake := h.waiting(i, 10)
		var a answer
		together(i, wake, func() { a = h.send("POST", "/admin/workers/jobs/"+id+"/cancel", "") })
		fine(t, a)
		j := h.last(id)
		agrees := false
		switch a.status {
		case http.StatusOK: // cancelled before it was claimed
			agrees = j.State == job.Cancelled && j.StartedAt == nil
		case http.StatusAccepted: // cancelled while running
			agrees = j.State == job.Cancelled && j.StartedAt != nil
		case http.StatusConflict: // the job had already ended
			agrees = j.State == job.Succeeded
		}
		if !agrees {
			t.Errorf("job %s ended %s, started %v, and the cancel was answered %d %s", id, j.State, j.StartedAt, a.status, a.text)
		}
		mu.Lock()
		said[fmt.Sprint(a.status, " ", j.State)]++
		mu.Unlock()
	})
	h.quietly()
	t.Logf("answers: %v", said)
}
