//go:build long

package e2e

import (
	"bufio"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

// A command sent to one process affects running and waiting jobs on all processes. Each case uses separate lanes.
func TestCommandsAcrossProcesses(t *testing.T) {
	t.Parallel()
	fleet := serveSteered(t, "TRAPEZE_LANES=known=3:demo.result")
	for name, does := range map[string]func(*steered){
		"approve": approves, "a full lane and another": fullLaneAndAnother, "priorities": priorities, "settings": settings, "kill": kills, "nice": nices,
		"ps": looks, "inactive": goesStale, "permissions": permits, "lanes of the environment": lanesOfTheEnvironment, "a user's routes": users,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			does(fleet.of(t))
		})
	}
}

func approves(f *steered) {
	f.lane("sworn", `{"requires_approval":true}`)
	id := f.submit(`{"kind":"demo.noop","lane":"sworn","chain":[{"kind":"demo.noop","lane":"sworn"}]}`)
	f.is.Equal(f.get(id).State, job.AwaitingApproval)
	f.idle("sworn")
	f.is.Equal(f.refused("uma", "POST", "/jobs/"+id+"/approve", ""), "Forbidden: forbidden") // submitters may not approve their own jobs
	f.does("ops", "POST", "/jobs/"+id+"/approve", "")
	f.until(id, job.Succeeded)
	pgtest.Wait(f.t, "the next step runs without another approval", func() bool {
		return f.does("ops", "GET", "/pipelines/"+id, "")["status"] == "succeeded"
	})
	f.is.Equal(f.refused("ops", "POST", "/jobs/"+id+"/approve", ""), "Conflict: not_awaiting_approval")
}

func fullLaneAndAnother(f *steered) {
	f.lane("full", `{"slots":2}`)
	f.lane("free", `{"slots":1}`)
	for range 20 {
		f.submit(`{"kind":"demo.sleep","args":{"ms":600000},"lane":"full"}`)
	}
	f.running("full", 2)
	for range 5 {
		f.until(f.submit(`{"kind":"demo.noop","lane":"free"}`), job.Succeeded) // a full lane does not starve other lanes
	}
	f.running("full", 2)
}

func priorities(f *steered) {
	f.lane("ordered", `{"slots":0}`)
	in := func(priority string) string {
		return f.submit(`{"kind":"demo.noop","lane":"ordered"` + priority + `}`)
	}
	low, older, newer, least, most := in(`,"priority":0`), in(""), in(`,"priority":10`), in(`,"priority":-100`), in(`,"priority":100`)
	f.is.Equal(f.get(older).Priority, 10) // the default for submissions over HTTP
	f.is.Equal(f.refused("uma", "POST", "/jobs", `{"kind":"demo.noop","lane":"ordered","priority":101}`), "Bad Request: invalid_request")
	f.idle("ordered") // without slots, nothing is claimed
	f.does("ops", "PATCH", "/admin/workers/lanes/ordered", `{"slots":1}`)
	f.until(least, job.Succeeded)
	f.is.Equal(f.first("ordered"), []string{most, older, newer, low, least}) // higher priority first, then in order of submission
}

func kills(f *steered) {
	f.lane("killed", `{"slots":1}`)
	runs := f.submit(`{"kind":"demo.progress","args":{"steps":100000,"ms":10},"lane":"killed"}`)
	queued := f.submit(`{"kind":"demo.noop","lane":"killed"}`)
	pgtest.Wait(f.t, "the job has made progress", func() bool { p := f.get(runs).Progress; return p != nil && p.Done != nil && *p.Done > 0 })
	status, answer := f.as("ops", "POST", "/admin/workers/jobs/"+queued+"/cancel", "")
	f.is.Equal([]any{status, answer["state"]}, []any{200, "cancelled"}) // a queued job is cancelled immediately
	status, answer = f.as("ops", "POST", "/admin/workers/jobs/"+runs+"/cancel", "")
	f.is.Equal([]any{status, answer["state"]}, []any{202, "running"}) // a running job is cancelled when its handler returns
	ended := f.until(runs, job.Cancelled)
	f.is.True(*ended.Progress.Done > 0) // the progress reported before the cancellation is kept
	f.is.Equal(f.count(`select count(*) from trapeze.job_event where job = $1::text::bigint and event = 'job.cancel_requested' and actor = 'ops'`, runs), 1)
	f.is.Equal(f.count(`select count(*) from trapeze.job_event where job = $1::text::bigint and event = 'job.claimed'`, queued), 0)
	for _, id := range []string{runs, queued} {
		f.is.Equal(f.refused("ops", "POST", "/admin/workers/jobs/"+id+"/cancel", ""), "Conflict: already_terminal")
		status, answer = f.as("uma", "POST", "/jobs/"+id+"/cancel", "")
		f.is.Equal([]any{status, answer["state"]}, []any{200, "cancelled"}) // cancelling again is not an error for users
	}
}

func nices(f *steered) {
	f.lane("niced", `{"slots":1}`)
	runs := f.submit(`{"kind":"demo.sleep","args":{"ms":600000},"lane":"niced"}`)
	f.until(runs, job.Running)
	var ids []string
	for range 3 {
		ids = append(ids, f.submit(`{"kind":"demo.noop","lane":"niced"}`))
	}
	nice := func(id, priority string) string {
		return f.refused("ops", "PATCH", "/admin/workers/jobs/"+id+"/priority", `{"priority":`+priority+`}`)
	}
	f.is.Equal(nice(ids[2], "50"), "OK: ")
	f.is.Equal(nice(ids[0], "-1"), "OK: ")
	f.is.Equal(nice(runs, "5"), "Conflict: not_queued")
	f.is.Equal(nice(ids[1], "101"), "Unprocessable Entity: invalid_request")
	f.is.Equal(nice(ids[1], "-101"), "Unprocessable Entity: invalid_request")
	f.does("ops", "POST", "/admin/workers/jobs/"+runs+"/force-cancel", "")
	f.until(ids[0], job.Succeeded)
	f.is.Equal(f.first("niced"), []string{runs, ids[2], ids[1], ids[0]})
}

func goesStale(f *steered) {
	f.lane("patient", `{}`)
	silent := f.submit(`{"kind":"demo.sleep","args":{"ms":600000},"lane":"patient","max_attempts":2}`)
	lively := f.submit(`{"kind":"demo.progress","args":{"steps":100000,"ms":50},"lane":"patient"}`)
	f.until(silent, job.Running)
	f.until(lively, job.Running)
	f.does("ops", "PATCH", "/admin/workers/lanes/patient", `{"inactivity_timeout_s":1}`) // applies to running jobs too
	pgtest.Wait(f.t, "its first attempt is inactive", func() bool { return f.get(silent).Attempt == 2 })
	ended := f.until(silent, job.Failed) // its last attempt
	f.is.Equal(string(*ended.Reason), "inactive")
	f.is.True(ended.FinishedAt.Sub(*ended.StartedAt) < 10*time.Second) // detected by the job's pod, not by an infrequent sweep
	f.is.Equal(f.get(lively).State, job.Running)                       // a handler that reports progress is not inactive
	f.is.Equal(f.get(lively).Attempt, 1)
}

func permits(f *steered) {
	f.lane("guarded", `{}`)
	id := f.submit(`{"kind":"demo.sleep","args":{"ms":600000},"lane":"guarded"}`)
	f.until(id, job.Running)
	const view, change = "/admin/workers/lanes", "/admin/workers/lanes/guarded"
	f.is.Equal(f.refused("uma", "GET", view, ""), "Forbidden: forbidden")
	f.is.Equal(f.refused("vic", "GET", view, ""), "OK: ")
	f.is.Equal(f.refused("vic", "PATCH", change, `{"slots":1}`), "Forbidden: forbidden") // a viewer may list lanes but not change them
	f.is.Equal(f.refused("mia", "PATCH", change, `{"slots":1}`), "Forbidden: forbidden")
	f.does("root", "PUT", "/admin/roles/lane_keeper", `{"permissions":["workers:view","workers:manage"],"scope":"all"}`)
	f.does("root", "PUT", "/admin/roles/grants", `{"principal":"mia","role":"lane_keeper"}`)
	for pod := range f.pods {
		pgtest.Wait(f.t, "every process knows of the grant", func() bool {
			status, _ := f.at(pod, "mia", "PATCH", change, `{"slots":9}`)
			return status == http.StatusOK
		})
	}
	for _, path := range []string{"/admin/workers/jobs/" + id + "/cancel", "/admin/workers/jobs/" + id + "/force-cancel", "/jobs/" + id + "/cancel"} {
		f.is.Equal(f.refused("mia", "POST", path, ""), "Forbidden: forbidden") // workers:manage does not include cancelling jobs
	}
	f.is.Equal(f.get(id).State, job.Running)
	f.does("root", "DELETE", "/admin/roles/grants?principal=mia&role=lane_keeper", "")
	for pod := range f.pods {
		pgtest.Wait(f.t, "every process knows that the grant is revoked", func() bool {
			status, _ := f.at(pod, "mia", "PATCH", change, `{"slots":9}`)
			return status == http.StatusForbidden
		})
	}
	for actions, want := range map[string]int{"role.set": 1, "role.grant": 1, "role.revoke": 1} {
		f.is.Equal(f.count(`select count(*) from trapeze.audit where action = $1 and target = 'role lane_keeper' and actor = 'root' and allowed`, actions), want)
	}
	f.is.True(f.count(`select count(*) from trapeze.audit where actor = 'mia' and not allowed`) >= 6) // rejected requests are recorded too
	f.is.True(f.count(`select count(*) from trapeze.audit where actor = 'mia' and allowed and target = 'lane guarded'`) >= 1)
}

func lanesOfTheEnvironment(f *steered) {
	setting := func() int { return f.count(`select slots from trapeze.lanes where name = 'known'`) }
	f.is.Equal(setting(), 3)
	f.is.Equal(f.get(f.submit(`{"kind":"demo.result"}`)).Lane, "known")
	f.does("ops", "PATCH", "/admin/workers/lanes/known", `{"slots":5}`)
	serve(f.t, f.url, []string{"TRAPEZE_LANES=known=3:demo.result,later=2:demo.tx"})
	f.is.Equal(setting(), 5) // the setting in the database takes precedence
	pgtest.Wait(f.t, "the earlier processes know of the lane", func() bool { return f.get(f.submit(`{"kind":"demo.tx"}`)).Lane == "later" })
	two := trapeze(f.t, []string{"DATABASE_URL=" + f.url, "TRAPEZE_LANES=one=1:demo.echo,two=1:demo.echo", "TRAPEZE_DEMO_HANDLERS=true"}, "serve")
	f.is.Equal(two.code, 2)
	f.is.True(strings.Contains(two.err, `kind "demo.echo" is in lanes "one" and "two"`))
	f.is.Equal(f.refused("ops", "PUT", "/admin/workers/lanes/nowhere/drain", ""), "Method Not Allowed: method_not_allowed")
}

// first returns the IDs of a lane's jobs in the order in which they were first claimed.
func (f *steered) first(lane string) (ids []string) {
	f.t.Helper()
	rows, err := f.pool.Query(f.t.Context(), `select id::text from trapeze.job where lane = $1 order by started_at`, lane)
	f.is.NoErr(err)
	for rows.Next() {
		var id string
		f.is.NoErr(rows.Scan(&id))
		ids = append(ids, id)
	}
	f.is.NoErr(rows.Err())
	return ids
}

func settings(f *steered) {
	f.lane("changed", `{}`)
	for range 12 {
		f.submit(`{"kind":"demo.sleep","args":{"ms":600000},"lane":"changed"}`)
	}
	f.running("changed", 12)
	_, err := f.pool.Exec(f.t.Context(), `update trapeze.lanes set slots = 1 where name = 'changed'`) // the change is made in plain SQL
	f.is.NoErr(err)
	waits := f.submit(`{"kind":"demo.noop","lane":"changed"}`)
	f.running("changed", 12) // running jobs continue
	f.does("ops", "PATCH", "/admin/workers/lanes/changed", `{"enabled":false}`)
	f.does("ops", "POST", "/admin/workers/jobs/cancel", `{"filter":{"lane":"changed","kind":"demo.sleep"}}`)
	f.running("changed", 0)
	f.idle("changed")
	f.does("ops", "PATCH", "/admin/workers/lanes/changed", `{"enabled":true}`)
	f.until(waits, job.Succeeded)
}

func looks(f *steered) {
	f.lane("seen", `{"slots":6}`)
	for range 9 {
		f.submit(`{"kind":"demo.sleep","args":{"ms":600000},"lane":"seen"}`)
	}
	f.running("seen", 6)
	rows := f.slots("seen")
	for pod := range f.pods {
		now := f.status(pod)
		var slots []string
		for _, s := range now.Running {
			if s.Lane == "seen" {
				slots = append(slots, fmt.Sprint(s.Job, s.Fence, s.PodID, s.Pod, s.Since.UnixMicro()))
			}
		}
		f.is.Equal(slices.Sorted(slices.Values(slots)), rows) // the job, fence, pod and start time of each slot
		for _, l := range now.Lanes {
			if l.Name == "seen" {
				f.is.Equal([]int{l.Running, *l.Slots, l.Waiting}, []int{6, 6, 3})
			}
		}
	}
	f.is.Equal(strings.Count(f.ok("ps"), " seen "), 6)
}

// slots returns a lane's used slots as read from the tables.
func (f *steered) slots(lane string) (list []string) {
	f.t.Helper()
	rows, err := f.pool.Query(f.t.Context(), `select l.id, l.fence, l.pod::text, p.name, l.claimed_at from trapeze.live l join trapeze.pods p on p.id = l.pod
		where l.lane = $1 and l.state = 'running'`, lane)
	f.is.NoErr(err)
	defer rows.Close()
	for rows.Next() {
		var id, fence int64
		var podID, name string
		var since time.Time
		f.is.NoErr(rows.Scan(&id, &fence, &podID, &name, &since))
		list = append(list, fmt.Sprint(id, fence, podID, name, since.UnixMicro()))
	}
	f.is.NoErr(rows.Err())
	slices.Sort(list)
	return list
}

func users(f *steered) {
	f.lane("shown", `{"slots":0}`)
	id := f.submit(`{"kind":"demo.progress","args":{"steps":40,"ms":100},"lane":"shown"}`)
	f.is.Equal(len(f.does("uma", "GET", "/jobs?lane=shown", "")["jobs"].([]any)), 1)
	request, err := http.NewRequestWithContext(f.t.Context(), "GET", f.pods[1].HTTP+"/jobs/"+id+"/stream", nil)
	f.is.NoErr(err)
	request.Header.Set("Authorization", "Bearer uma-0123456789-0123456789")
	stream, err := http.DefaultClient.Do(request)
	f.is.NoErr(err)
	defer stream.Body.Close()
	f.does("ops", "PATCH", "/admin/workers/lanes/shown", `{"slots":1}`)
	var names []string
	for lines := bufio.NewScanner(stream.Body); lines.Scan(); { // until the server closes the stream
		if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			names = append(names, name)
		}
	}
	f.is.Equal(names[0], "snapshot")
	f.is.True(slices.Contains(names, "progress"))
	f.is.Equal(names[len(names)-2:], []string{"job.succeeded", "end"})
	f.does("uma", "DELETE", "/jobs/"+id, "")
	f.is.Equal(f.refused("uma", "GET", "/jobs/"+id, ""), "Not Found: not_found")
}
