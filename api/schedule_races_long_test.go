//go:build long

package api_test

import (
	"net/http"
	"sync"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
)

func TestScheduleChangedDuringPermissionCheck(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{Authenticate: byName(map[string][]string{"root": {"platform_admin"}, "kim": {"keeper"}}), ChangesPerSecond: -1})
	is.Equal(h.send("PUT", "/admin/roles/keeper", `{"permissions":["schedules:manage","workers:view"],"scope":"all"}`, "X-Who", "root").status, http.StatusOK)
	is.Equal(h.send("PUT", "/admin/workers/lanes/risky", `{"requires_approval":true,"kinds":["hold"]}`, "X-Who", "root").status, http.StatusOK)
	is.Equal(h.send("PUT", nightly, `{"expression":"@yearly","kind":"echo"}`, "X-Who", "root").status, http.StatusOK)

	// root switches the schedule back and forth between a kind that needs approval and one that does not. Meanwhile, kim, who may not
	// approve, acts on it.
	const rounds = 60
	var moving sync.WaitGroup
	moving.Go(func() {
		for i := range rounds {
			kind := []string{"hold", "echo"}[i%2]
			h.send("PUT", nightly, `{"expression":"@yearly","kind":"`+kind+`","args":{"by":"root"}}`, "X-Who", "root")
		}
	})
	for i := range rounds {
		for _, a := range []answer{
			h.send("POST", nightly+"/trigger", "", "X-Who", "kim"),
			h.send("PATCH", nightly, `{"kind":"echo"}`, "X-Who", "kim"), // applied or forbidden, but never with the other kind's arguments
			h.send("PATCH", nightly, `{"args":{"by":"kim"}}`, "X-Who", "kim"),
		} {
			if a.status != http.StatusOK && a.status != http.StatusForbidden && a.body["code"] != "conflict" {
				t.Fatalf("round %d: %d %s", i, a.status, a.text)
			}
		}
	}
	moving.Wait()
	is.Equal(len(h.send("GET", "/jobs?kind=hold", "", "X-Who", "root").body["jobs"].([]any)), 0) // kim never started a job that needs approval
	for _, one := range h.send("GET", "/admin/audit?actor=kim&action=schedule.set&limit=1000", "", "X-Who", "root").body["audit"].([]any) {
		row := one.(map[string]any)
		if row["refused"] == nil || row["refused"] == "" {
			is.Equal(row["after"].(map[string]any)["kind"], "echo")  // kim never changed the schedule to the other kind
			is.Equal(row["before"].(map[string]any)["kind"], "echo") // nor from the other kind
		}
	}
}

func TestConcurrentScheduleCreation(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{ChangesPerSecond: -1})
	for range 20 {
		var both sync.WaitGroup
		statuses := make([]int, 4)
		for i := range statuses {
			both.Go(func() { statuses[i] = h.send("PUT", nightly, `{"expression":"@yearly","kind":"echo"}`).status })
		}
		both.Wait()
		for _, status := range statuses {
			is.Equal(status, http.StatusOK) // the first request creates the schedule, the others update it
		}
		is.Equal(h.send("DELETE", nightly, "").status, http.StatusNoContent)
	}
}
