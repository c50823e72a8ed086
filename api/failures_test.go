package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
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

// failing registers two kinds, bad and worse, whose jobs fail with the error given in their arguments.
func failing(r *runner.Runner) {
	for _, kind := range []string{"bad", "worse"} {
		runner.HandleRaw(r, kind, func(_ context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			var text string
			err := json.Unmarshal(j.Args.JSON, &text)
			return nil, errors.Join(err, errors.New(text))
		})
	}
}

// fail submits a job that fails with the given error, waits until it has failed, and returns its ID.
func (h *host) fail(kind, text string, header ...string) string {
	h.t.Helper()
	a := h.send("POST", "/jobs", fmt.Sprintf(`{"kind":%q,"args":%q}`, kind, text), header...)
	id, _ := a.body["id"].(string)
	h.untilAs(id, job.Failed, header...)
	return id
}

// groups returns the failure groups in a response.
func groups(a answer) (list []map[string]any) {
	all, _ := a.body["failures"].([]any)
	for _, one := range all {
		list = append(list, one.(map[string]any))
	}
	return list
}

func TestFailureGroupsByKindError(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{}, failing)
	is.Equal(len(groups(h.send("GET", "/failures", ""))), 0)
	for i := range 3 {
		h.fail("bad", fmt.Sprintf("row %d is bad", i))
	}
	newest := h.fail("bad", "row 77 is bad\nand more")
	h.fail("bad", "no connection")
	h.fail("worse", "row 1 is bad")
	h.until(h.submit(`{"kind":"echo"}`), job.Succeeded)

	a := h.send("GET", "/failures?since=1h", "")
	is.Equal(a.status, http.StatusOK)
	found := groups(a)
	is.Equal(len(found), 3)
	is.Equal([]any{a.body["groups"], a.body["jobs"], a.body["complete"]}, []any{3.0, 6.0, true})
	first := found[0]
	is.Equal([]any{first["kind"], first["error"], first["example"], first["jobs"], first["newest"], first["error_class"]},
		[]any{"bad", "row # is bad", "row 77 is bad", 4.0, newest, "error"})
	sum := 0.0
	for _, n := range first["trend"].([]any) {
		sum += n.(float64)
	}
	is.Equal(sum, 4.0) // the trend covers every job
	is.True(first["first_failed_at"].(string) < first["last_failed_at"].(string))
	only := h.send("GET", "/failures?kind=worse", "")
	is.Equal(len(groups(only)), 1)
	is.True(groups(only)[0]["id"] != first["id"]) // the same error in another kind forms a separate group
	few := h.send("GET", "/failures?limit=1", "")
	is.Equal([]any{len(groups(few)), few.body["groups"]}, []any{1, 3.0})

	group := h.send("GET", "/failures/"+first["id"].(string), "")
	is.Equal(group.status, http.StatusOK)
	members := group.body["members"].([]any)
	is.Equal(len(members), 4)
	is.Equal(members[0].(map[string]any)["id"], newest)
	is.Equal(h.send("GET", "/failures/0123456789abcdef", "").status, http.StatusNotFound)
	is.Equal(h.send("GET", "/failures?since=yesterday", "").status, http.StatusBadRequest)
	is.Equal(h.send("GET", "/failures?limit=0", "").status, http.StatusBadRequest)

	page := h.send("GET", "/ui/failures", "").text
	is.True(strings.Contains(page, "row # is bad"))
	is.True(strings.Contains(page, "6 failed jobs in 3 groups"))
	page = h.send("GET", "/ui/failures/"+first["id"].(string), "").text
	is.True(strings.Contains(page, "bad</bdi>: 4 failures"))
	is.True(strings.Contains(page, "row 77 is bad"))
	is.True(strings.Contains(h.send("GET", "/ui/jobs/"+newest, "").text, "failures/"+first["id"].(string))) // a failed job links to its group
}

func TestRetryOfShownFailureGroup(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{}, failing)
	var ids []string
	for i := range 3 {
		ids = append(ids, h.fail("bad", fmt.Sprintf("row %d is bad", i)))
	}
	set := groups(h.send("GET", "/failures", ""))[0]["set"].(string)
	page := h.send("GET", "/ui/failures", "").text
	is.True(strings.Contains(page, set)) // the button on the page sends the set
	later := h.fail("bad", "row 9 is bad")

	retry := func(path, filter string, dry bool) answer {
		return h.send("POST", "/admin/workers/jobs/"+path, fmt.Sprintf(`{"filter":%s,"dry_run":%t}`, filter, dry))
	}
	filter := fmt.Sprintf(`{"failures":%q}`, set)
	moved := func(sql string) { // simulates the other job ending in the meantime, in a transaction that commits later
		_, err := inside.Of(h.Runner).Store.Pool().Exec(t.Context(), `update trapeze.done set finished_at = finished_at `+sql+` where id = $1::text::bigint`, later)
		is.NoErr(err)
	}
	moved(`- (select max(finished_at) - min(finished_at) from trapeze.done) + interval '1 microsecond'`)
	is.Equal(retry("retry", filter, false).body["code"], "conflict") // a retry includes only jobs that the page showed
	moved(`+ interval '1 hour'`)
	is.Equal(retry("retry", filter, true).body["matched"], 3.0)
	did := retry("retry", filter, false)
	is.Equal([]any{did.body["matched"], did.body["done"], did.body["skipped"]}, []any{3.0, 3.0, 0.0})
	for _, id := range ids {
		pgtest.Wait(t, "the job failed again", func() bool {
			j := h.send("GET", "/jobs/"+id, "").body
			return j["epoch"] == 2.0 && j["state"] == "failed"
		})
	}
	is.Equal(h.send("GET", "/jobs/"+later, "").body["epoch"], 1.0) // not retried, because it failed after the group was read

	again := retry("retry", filter, false)
	is.Equal([]any{again.status, again.body["code"]}, []any{http.StatusConflict, "conflict"})
	is.Equal(h.send("GET", "/jobs/"+ids[0], "").body["epoch"], 2.0) // the jobs have failed again, so they form a different set
	is.Equal(retry("retry", `{"failures":"x"}`, false).status, http.StatusBadRequest)
	is.Equal(retry("retry", fmt.Sprintf(`{"failures":%q,"kind":"bad"}`, set), false).status, http.StatusBadRequest)
	is.Equal(retry("cancel", filter, false).status, http.StatusBadRequest)
	deed := h.send("GET", "/admin/audit?action=jobs.retry", "").text
	is.True(strings.Contains(deed, set)) // the audit entry names the set
	is.True(strings.Contains(deed, `"matched":3`))
}

func TestFailureGroupsOfOtherSubmitters(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{Authenticate: byName(map[string][]string{"sub": {"submitter"}, "ana": {"operator"}, "vic": {"viewer"}})}, failing)
	own := h.fail("bad", "row 1 is bad", "X-Who", "sub")
	others := h.fail("bad", "row 2 is bad", "X-Who", "ana")
	h.fail("bad", "secret place", "X-Who", "ana")
	for path, members := range map[string]int{"/failures": 1, "/failures?since=1h&kind=bad": 1} {
		a := h.send("GET", path, "", "X-Who", "sub")
		is.Equal(a.status, http.StatusOK)
		is.Equal(len(groups(a)), members)
		is.Equal([]any{groups(a)[0]["jobs"], groups(a)[0]["newest"]}, []any{1.0, own})
		is.True(!strings.Contains(a.text, "secret"))
	}
	all := groups(h.send("GET", "/failures", "", "X-Who", "ana"))
	is.Equal(len(all), 2)
	is.Equal(all[0]["newest"], others)
	hidden := all[1]["id"].(string)
	is.Equal(h.send("GET", "/failures/"+hidden, "", "X-Who", "sub").status, http.StatusNotFound)
	for who, retries := range map[string]bool{"ana": true, "sub": true, "vic": false} {
		page := h.send("GET", "/ui/failures", "", "X-Who", who)
		is.Equal(page.status, http.StatusOK)
		is.Equal(strings.Contains(page.text, "data-many"), retries)
		is.Equal(strings.Contains(page.text, "secret place"), who != "sub") // even after others have read the page
	}
	is.True(!strings.Contains(h.send("GET", "/ui/failures/"+hidden, "", "X-Who", "sub").text, "secret"))
	body := fmt.Sprintf(`{"filter":{"failures":%q}}`, all[0]["set"])
	is.Equal(h.send("POST", "/admin/workers/jobs/retry", body, "X-Who", "sub").status, http.StatusForbidden)
	is.Equal(h.send("POST", "/failures/retry", body, "X-Who", "vic").status, http.StatusForbidden)

	// A submitter can retry a group only if it contains no other submitter's jobs.
	is.Equal(h.send("POST", "/failures/retry", body, "X-Who", "sub").body["code"], "conflict")
	is.Equal(h.send("POST", "/failures/retry", `{"filter":{"kind":"bad"}}`, "X-Who", "sub").status, http.StatusBadRequest)
	mine := fmt.Sprintf(`{"filter":{"failures":%q}}`, groups(h.send("GET", "/failures", "", "X-Who", "sub"))[0]["set"])
	did := h.send("POST", "/failures/retry", mine, "X-Who", "sub")
	is.Equal([]any{did.status, did.body["matched"], did.body["done"]}, []any{http.StatusOK, 1.0, 1.0})
	pgtest.Wait(t, "the job failed again", func() bool { return h.send("GET", "/jobs/"+own, "", "X-Who", "sub").body["epoch"] == 2.0 })
	is.Equal(h.send("GET", "/jobs/"+others, "", "X-Who", "ana").body["epoch"], 1.0)
	is.Equal(h.send("POST", "/failures/retry", body, "X-Who", "ana").body["code"], "conflict") // the group has changed for others too
}

func TestFailureGroupWithPendingRetries(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{Authenticate: byName(map[string][]string{"sub": {"submitter"}, "ana": {"operator"}})}, failing, func(r *runner.Runner) {
		runner.HandleRaw(r, "later", func(_ context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			return nil, errors.New("row " + string(j.Args.JSON) + " is bad")
		}, runner.Retry(2, job.Backoff{Base: 10 * time.Minute}))
	})
	waits := func(args, who string) string {
		id := h.send("POST", "/jobs", `{"kind":"later","args":`+args+`}`, "X-Who", who).body["id"].(string)
		pgtest.Wait(t, "the job waits for another attempt", func() bool { return h.send("GET", "/jobs/"+id, "", "X-Who", who).body["reason"] == "retry" })
		return id
	}
	waits("1", "ana")
	newest := waits("22", "ana")
	found := groups(h.send("GET", "/failures", "", "X-Who", "ana"))
	is.Equal(len(found), 1)
	is.Equal([]any{found[0]["error"], found[0]["jobs"], found[0]["retrying"], found[0]["newest"], found[0]["set"]}, []any{"row # is bad", 0.0, 2.0, newest, ""})
	is.Equal(len(groups(h.send("GET", "/failures", "", "X-Who", "sub"))), 0) // these jobs belong to others
	id := found[0]["id"].(string)
	page := h.send("GET", "/ui/failures/"+id, "", "X-Who", "ana").text
	is.True(strings.Contains(page, "wait for another attempt"))
	is.True(!strings.Contains(page, "data-many")) // there is nothing to retry

	is.Equal(h.send("POST", "/jobs", `{"kind":"later","max_attempts":1,"args":3}`, "X-Who", "sub").status, http.StatusAccepted)
	waits("4", "sub")
	pgtest.Wait(t, "a job has failed for good", func() bool {
		return len(h.send("GET", "/jobs?state=failed", "", "X-Who", "sub").body["jobs"].([]any)) == 1
	})
	for who, retrying := range map[string]float64{"ana": 3, "sub": 1} {
		a := h.send("GET", "/failures?kind=later", "", "X-Who", who)
		one := groups(a)[0]
		is.Equal([]any{one["id"], one["jobs"], one["retrying"], a.body["retrying"], a.body["retrying_complete"]}, []any{id, 1.0, retrying, retrying, true})
	}
	page = h.send("GET", "/ui/failures", "", "X-Who", "ana", "X-Fresh", "1").text
	is.True(strings.Contains(page, "3 jobs wait for another attempt"))
	is.Equal(len(groups(h.send("GET", "/failures?since=2099-01-01T00:00:00Z", "", "X-Who", "ana"))), 0)
}
