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
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// race calls one(i) for each i below races, with at most six calls running at a time. In each call, two operations overlap; i decides which
// of them starts later.
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

// together runs both functions concurrently. i decides which one starts later and by how much. The delay only varies the overlap; it does
// not synchronize the functions.
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
func (h *host) last(id string) (j job.Job) {
	h.t.Helper()
	number, _ := strconv.ParseInt(id, 10, 64)
	pgtest.Wait(h.t, "job "+id+" has ended", func() bool {
		var err error
		j, err = h.Job(h.t.Context(), number)
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

func TestACancelThatMeetsTheFinishSaysWhatCame(t *testing.T) {
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

// waiting submits a job as another process would, without notifying the pod. The job stays pending until wake triggers a claim.
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

func TestACancelThatMeetsTheClaimSaysWhatCame(t *testing.T) {
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
		case http.StatusOK: // cancelled before the claim
			agrees = j.State == job.Cancelled && j.StartedAt == nil
		case http.StatusAccepted: // cancelled while it ran
			agrees = j.State == job.Cancelled && j.StartedAt != nil
		case http.StatusConflict: // cancelled after it had ended
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

func TestANiceThatMeetsTheClaimSaysWhatCame(t *testing.T) {
	t.Parallel()
	h := newHost(t, api.Options{})
	var mu sync.Mutex
	said := map[string]int{}
	race(t, func(i int) {
		id, wake := h.waiting(i, 10)
		var a answer
		together(i, wake, func() { a = h.send("PATCH", "/admin/workers/jobs/"+id+"/priority", `{"priority":50}`) })
		fine(t, a)
		j := h.last(id)
		want := 50
		if a.status == http.StatusConflict {
			want = 10
		}
		code, _ := a.body["code"].(string)
		if j.Priority != want || a.status != http.StatusOK && code != "not_queued" && code != "already_terminal" {
			t.Errorf("job %s has priority %d, and the change was answered %d %s", id, j.Priority, a.status, a.text)
		}
		mu.Lock()
		said[fmt.Sprint(a.status, " ", code)]++
		mu.Unlock()
	})
	h.quietly()
	t.Logf("answers: %v", said)
}

// An operator retries a job while the recovery of its dead pod marks it as failed.
func TestARetryThatMeetsTheRecoverySaysWhatCame(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{})
	s := inside.Of(h.Runner).Store
	var mu sync.Mutex
	said := map[string]int{}
	race(t, func(i int) {
		ctx := t.Context()
		boot, kind := uuid.NewString(), "foreign"+strconv.Itoa(i) // no pod handles this kind, so only this test claims the job
		try := func(err error) bool {
			if err != nil {
				t.Error(err)
			}
			return err == nil
		}
		ids, err := s.NewIDs(ctx, 1)
		crashes := 1
		if !try(err) || !try(s.Register(ctx, store.PodInfo{Boot: boot, Name: "dead", Kinds: []string{kind}, Slots: 1}, 8*time.Second)) {
			return
		}
		_, err = s.Enqueue(ctx, boot, []store.NewJob{{ID: ids[0], Kind: kind, Lane: job.DefaultLane, Args: []byte(`{}`), Priority: 10, MaxCrashes: &crashes}})
		if !try(err) {
			return
		}
		if found, err := s.Claim(ctx, boot, []store.Want{{Lane: job.DefaultLane, N: 1}}, []string{kind}, true); !try(err) || len(found.Jobs) != 1 {
			t.Errorf("claimed %d jobs", len(found.Jobs))
			return
		}
		if !try(s.Leave(ctx, boot)) { // the pod leaves while it holds a job
			return
		}
		id := strconv.FormatInt(ids[0], 10)
		var a answer
		together(i, func() { _, err := store.RecoverPage(ctx, s, []string{boot}, ids[0]-1, 1, 3); try(err) }, func() {
			a = h.send("POST", "/jobs/"+id+"/retry", "")
		})
		fine(t, a)
		pgtest.Wait(t, "the job is recovered", func() bool { // the pod of h runs recovery too; one of the two skips the job
			passed, err := store.RecoverPage(ctx, s, []string{boot}, ids[0]-1, 1, 3)
			return try(err) && passed.Passed == 0
		})
		j, err := h.Job(ctx, ids[0])
		if !try(err) {
			return
		}
		code, _ := a.body["code"].(string)
		agrees := a.status == http.StatusAccepted && j.State == job.Pending && j.Epoch == 2 && j.Crashes == 0 ||
			code == "not_failed" && j.State == job.Failed && j.Epoch == 1 && j.Reason != nil && *j.Reason == job.ReasonCrashed
		if !agrees || j.Fence != 1 {
			t.Errorf("job %s is %s in epoch %d, and the retry was answered %d %s", id, j.State, j.Epoch, a.status, a.text)
		}
		if j.State == job.Pending { // otherwise claims would read past a thousand pending jobs
			_, err := h.Admin().Cancel(ctx, ids[0], "me")
			try(err)
		}
		mu.Lock()
		said[fmt.Sprint(a.status, " ", code)]++
		mu.Unlock()
	})
	h.quietly()
	t.Logf("answers: %v", said)
	is.True(races < 1000 || len(said) == 2) // each command came first at least once
}
