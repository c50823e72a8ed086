//go:build long

package api_test

import (
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

const races = 3000

func TestPriorityChangeRacingClaim(t *testing.T) {
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

// An operator retries a job while the recovery of its dead pod marks the job as failed.
func TestManualRetryDuringRecovery(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{})
	s := inside.Of(h.Runner).Store
	var mu sync.Mutex
	said := map[string]int{}
	race(t, func(i int) {
		ctx := t.Context()
		podID, kind := uuid.NewString(), "foreign"+strconv.Itoa(i) // no pod handles this kind, so only this test claims the job
		try := func(err error) bool {
			if err != nil {
				t.Error(err)
			}
			return err == nil
		}
		ids, err := s.NewIDs(ctx, 1)
		crashes := 1
		if !try(err) || !try(s.Register(ctx, store.PodInfo{PodID: podID, Name: "dead", Kinds: []string{kind}, Slots: 1}, 8*time.Second)) {
			return
		}
		_, err = s.Enqueue(ctx, podID, []store.NewJob{{ID: ids[0], Kind: kind, Lane: job.DefaultLane, Args: []byte(`{}`), Priority: 10, MaxCrashes: &crashes}})
		if !try(err) {
			return
		}
		if found, err := s.Claim(ctx, podID, []store.Want{{Lane: job.DefaultLane, N: 1}}, []string{kind}, nil, true); !try(err) || len(found.Jobs) != 1 {
			t.Errorf("claimed %d jobs", len(found.Jobs))
			return
		}
		if !try(s.Leave(ctx, podID)) { // the pod leaves while it holds a job
			return
		}
		id := strconv.FormatInt(ids[0], 10)
		var a answer
		together(i, func() { _, err := store.RecoverPage(ctx, s, []string{podID}, ids[0]-1, 1, 3); try(err) }, func() {
			a = h.send("POST", "/jobs/"+id+"/retry", "")
		})
		fine(t, a)
		pgtest.Wait(t, "the job is recovered", func() bool { // h's pod runs recovery too, so one of the two skips the job
			passed, err := store.RecoverPage(ctx, s, []string{podID}, ids[0]-1, 1, 3)
			return try(err) && passed.Passed == 0
		})
		j, err := h.GetJob(ctx, ids[0])
		if !try(err) {
			return
		}
		code, _ := a.body["code"].(string)
		agrees := a.status == http.StatusAccepted && j.State == job.Pending && j.Epoch == 2 && j.Crashes == 0 ||
			code == "not_failed" && j.State == job.Failed && j.Epoch == 1 && j.Reason != nil && *j.Reason == job.ReasonCrashed
		if !agrees || j.Fence != 1 {
			t.Errorf("job %s is %s in epoch %d, and the retry was answered %d %s", id, j.State, j.Epoch, a.status, a.text)
		}
		if j.State == job.Pending { // otherwise claims would have to read past a thousand pending jobs
			_, err := h.Admin("me").Cancel(ctx, ids[0])
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
