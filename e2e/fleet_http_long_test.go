//go:build long

package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

// steered is a fleet that several users operate over HTTP, each with a separate token. Requests may go to any of its processes.
type steered struct {
	*fleet
	next int // the process that receives the next request
}

// serveSteered starts a fleet of two processes with many slots.
func serveSteered(t *testing.T, env ...string) *steered {
	t.Helper()
	f := &fleet{database: database{t, pgtest.URL(t)}, is: is.New(t)}
	f.pool = pgtest.Connect(t, f.url)
	env = append(env, "TRAPEZE_TOKENS_FILE="+tokensOfTeam(t), "TRAPEZE_SLOTS=40", "TRAPEZE_LEASE_DURATION=2s", "TRAPEZE_HEARTBEAT_INTERVAL=300ms")
	for _, name := range []string{"web-0", "web-1"} {
		f.pods = append(f.pods, serve(t, f.url, append([]string{"TRAPEZE_POD_NAME=" + name}, env...)))
	}
	return &steered{fleet: f}
}

// of returns the fleet for use in a subtest.
func (f *steered) of(t *testing.T) *steered {
	own := *f.fleet
	own.database.t, own.is = t, is.New(t)
	return &steered{fleet: &own}
}

// as sends a request to the next process on behalf of a user, and returns the status and the response body.
func (f *steered) as(who, method, path, body string) (int, map[string]any) {
	f.t.Helper()
	f.next++
	return f.at(f.next, who, method, path, body)
}

// at sends a request to the given process.
func (f *steered) at(pod int, who, method, path, body string) (int, map[string]any) {
	f.t.Helper()
	request, err := http.NewRequestWithContext(f.t.Context(), method, f.pods[pod%len(f.pods)].HTTP+path, bytes.NewBufferString(body))
	f.is.NoErr(err)
	request.Header.Set("Authorization", "Bearer "+who+"-0123456789-0123456789")
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	f.is.NoErr(err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	f.is.NoErr(err)
	answer := map[string]any{}
	_ = json.Unmarshal(text, &answer)
	return response.StatusCode, answer
}

// does is like as, but fails the test if the request is rejected.
func (f *steered) does(who, method, path, body string) map[string]any {
	f.t.Helper()
	status, answer := f.as(who, method, path, body)
	if status >= 300 {
		f.t.Fatalf("%s %s %s: %d %v", method, path, body, status, answer)
	}
	return answer
}

// refused sends a request that must be rejected, and returns the status text and the error code.
func (f *steered) refused(who, method, path, body string) string {
	f.t.Helper()
	status, answer := f.as(who, method, path, body)
	code, _ := answer["code"].(string)
	return http.StatusText(status) + ": " + code
}

// submit submits a job as uma and returns the job's ID.
func (f *steered) submit(body string) string {
	f.t.Helper()
	return f.does("uma", "POST", "/jobs", body)["id"].(string)
}

// lane creates a lane with the settings in body.
func (f *steered) lane(name, body string) {
	f.t.Helper()
	f.does("ops", "PUT", "/admin/workers/lanes/"+name, body)
}

// get reads a job through the next process.
func (f *steered) get(id string) job.JobRow {
	f.t.Helper()
	raw, err := json.Marshal(f.does("root", "GET", "/jobs/"+id, ""))
	f.is.NoErr(err)
	return decoded[job.JobRow](f.t, string(raw))
}

// until waits until a job has reached a state.
func (f *steered) until(id string, state job.State) (j job.JobRow) {
	f.t.Helper()
	pgtest.Wait(f.t, "job "+id+" is "+string(state), func() bool { j = f.get(id); return j.State == state })
	return j
}

// running waits until exactly n of a lane's jobs are running.
func (f *steered) running(lane string, n int) {
	f.t.Helper()
	pgtest.Wait(f.t, "all slots are in use", func() bool {
		return f.count(`select count(*) from trapeze.live where lane = $1 and state = 'running'`, lane) == n
	})
}

// idle checks for several poll intervals that no job in a lane starts.
func (f *steered) idle(lane string) {
	f.t.Helper()
	for until := time.Now().Add(3 * 200 * time.Millisecond); time.Now().Before(until); {
		f.is.Equal(f.count(`select count(*) from trapeze.live where lane = $1 and state = 'running'`, lane), 0)
	}
}

// status returns the fleet's status as reported by one process.
func (f *steered) status(pod int) job.Fleet {
	f.t.Helper()
	_, answer := f.at(pod, "vic", "GET", "/admin/workers/status", "")
	raw, err := json.Marshal(answer)
	f.is.NoErr(err)
	return decoded[job.Fleet](f.t, string(raw))
}
