package api_test

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestKindsThroughAPI(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{Authenticate: byName(map[string][]string{"vic": {"viewer"}, "sub": {"submitter"}})}, func(r *runner.Runner) {
		runner.HandleRaw(r, "limited", never, runner.Timeout(90*time.Second), runner.Retry(7), runner.InactivityTimeout(5*time.Second))
	})
	pool := inside.Of(h.Runner).Store.Pool()
	pgtest.Exec(t, pool, `insert into trapeze.stats (at, lane, kind, state, jobs, wait, run)
		select date_trunc('minute', now()) - interval '2 minutes', 'default', kind, state, jobs, wait, run
		from (values ('quick', 'succeeded', 600, array[0, 600], array[600]), ('quick', 'failed', 3, array[0, 3], array[3]),
			('slow', 'succeeded', 2, array[2], array[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2])) v(kind, state, jobs, wait, run)`)
	pgtest.Exec(t, pool, `insert into trapeze.lanes (name, slots, slots_per_pod) values ('side', 4, 2)`)
	pgtest.Exec(t, pool, `insert into trapeze.lane_kinds (kind, lane) values ('limited', 'side')`)
	running := h.send("POST", "/jobs", `{"kind":"hold"}`, "X-Who", "sub").body["id"].(string)
	h.untilAs(running, job.Running, "X-Who", "sub")
	is.Equal(h.send("POST", "/jobs", `{"kind":"orphan","allow_unregistered":true}`, "X-Who", "sub").status, http.StatusAccepted)

	read := func(query string) (list []job.KindUse) {
		t.Helper()
		a := h.send("GET", "/kinds"+query, "", "X-Who", "vic")
		is.Equal(a.status, http.StatusOK)
		var body struct{ Kinds []job.KindUse }
		is.NoErr(json.Unmarshal([]byte(a.text), &body))
		return body.Kinds
	}
	find := func(list []job.KindUse, kind string) job.KindUse {
		t.Helper()
		for _, one := range list {
			if one.Kind == kind {
				return one
			}
		}
		t.Fatalf("kind %s is not listed", kind)
		return job.KindUse{}
	}
	list := read("")
	is.Equal([]string{list[0].Kind, list[1].Kind}, []string{"slow", "quick"}) // the slowest kind first
	is.True(list[0].Ended.RunP95.Duration() > 500*time.Millisecond)
	is.Equal([]int64{list[1].Ended.Finished, list[1].Ended.Failed}, []int64{603, 3})
	is.Equal(read("?order=finished")[0].Kind, "quick")
	limited := find(list, "limited")
	is.Equal([]any{limited.Lane, *limited.Slots, *limited.SlotsPerPod}, []any{"side", 4, 2})
	is.Equal(len(limited.Handlers), 1)
	is.Equal(len(limited.Handlers[0].Pods), 1)
	after := job.Seconds(5 * time.Second)
	is.Equal(*limited.Handlers[0].Limits, job.KindLimits{Timeout: job.Seconds(90 * time.Second), MaxAttempts: 7, MaxCrashes: limited.Handlers[0].Limits.MaxCrashes, InactivityTimeout: &after})
	is.True(limited.Handlers[0].Limits.MaxCrashes > 0)
	is.Equal([]int{find(list, "hold").Running, find(list, "hold").Waiting}, []int{1, 0})
	orphan := find(list, "orphan")
	is.Equal([]int{orphan.Running, orphan.Waiting, len(orphan.Handlers)}, []int{0, 1, 0}) // its job is waiting because no pod handles the kind
	is.True(orphan.Oldest != nil)
	for _, wrong := range []string{"?order=size", "?window=2h"} {
		is.Equal(h.send("GET", "/kinds"+wrong, "", "X-Who", "vic").status, http.StatusBadRequest)
		is.Equal(h.send("GET", "/ui/kinds"+wrong, "", "X-Who", "vic").status, http.StatusBadRequest)
	}
	is.Equal(h.send("GET", "/kinds", "", "X-Who", "sub").status, http.StatusForbidden) // the counts would include jobs of other submitters

	page := h.send("GET", "/ui/kinds", "", "X-Who", "vic").text
	is.True(strings.Index(page, `id="kind-slow"`) < strings.Index(page, `id="kind-quick"`))
	is.True(regexp.MustCompile(`aria-sort="descending"><a [^>]*>Run p95`).MatchString(page))
	is.True(strings.Contains(page, "7 attempts, "))
	is.True(strings.Contains(page, "slots: 4"))
	is.True(strings.Contains(page, "timeout 1m30s, inactive for 5s"))
	page = h.send("GET", "/ui/kinds?order=finished&window=24h", "", "X-Who", "vic").text
	is.True(strings.Index(page, `id="kind-slow"`) > strings.Index(page, `id="kind-quick"`))
	close(h.held(running))

	pgtest.Exec(t, pool, `update trapeze.pods set limits = null`) // as if the pod ran an earlier release
	is.Equal(find(read(""), "limited").Handlers[0].Limits, nil)
	is.True(strings.Contains(h.send("GET", "/ui/kinds?window=7d", "", "X-Who", "vic").text, "not reported"))
}
