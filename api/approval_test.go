package api_test

import (
	"net/http"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/job"
)

// risky returns a host with a lane that requires approval. Jobs of kind hold run in that lane.
func risky(t *testing.T) *host {
	is := is.New(t)
	h := strangers(t)
	is.Equal(h.send("PUT", "/admin/workers/lanes/risky", `{"requires_approval":true,"kinds":["hold"]}`, "X-Who", "root").status, http.StatusOK)
	return h
}

func TestApprovalBypassByLaneChain(t *testing.T) {
	t.Parallel()
	h := risky(t)
	for name, body := range map[string]string{
		"unchanged":                       `{"kind":"hold"}`,
		"in another lane":                 `{"kind":"hold","lane":"default"}`,
		"as a later step":                 `{"kind":"echo","chain":[{"kind":"echo"},{"kind":"hold"}]}`,
		"as a later step in another lane": `{"kind":"echo","chain":[{"kind":"hold","lane":"default"}]}`,
		"before a step":                   `{"kind":"hold","lane":"default","chain":[{"kind":"echo"}]}`,
		"in the lane, another kind":       `{"kind":"echo","lane":"risky"}`,
		"a later step in the lane":        `{"kind":"echo","chain":[{"kind":"echo","lane":"risky"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			a := h.send("POST", "/jobs", body, "X-Who", "ana")
			is.Equal(a.status, http.StatusAccepted)
			is.Equal(a.body["state"], "awaiting_approval")
		})
	}
	is := is.New(t)
	is.Equal(h.send("POST", "/jobs", `{"kind":"echo","lane":"default","delay":3600,"chain":[{"kind":"echo"}]}`, "X-Who", "ana").body["state"], "pending") // other jobs need no approval
}

func TestApprovalOfRejectedJobsRetry(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := risky(t)
	ana, root := []string{"X-Who", "ana"}, []string{"X-Who", "root"}
	id := h.send("POST", "/jobs", `{"kind":"hold","args":{"n":1}}`, ana...).body["id"].(string)
	is.Equal(h.send("POST", "/jobs/"+id+"/approve", "", root...).status, http.StatusOK)
	h.untilAs(id, job.Running, ana...)
	is.True(h.send("POST", "/admin/workers/jobs/"+id+"/force-cancel", "", root...).status < 300)
	is.Equal(h.send("POST", "/jobs/"+id+"/retry", `{"args":{"n":2}}`, ana...).body["state"], "awaiting_approval")
	is.Equal(h.send("POST", "/jobs/"+id+"/cancel", "", root...).status, http.StatusOK)
	is.Equal(h.send("POST", "/jobs/"+id+"/retry", "", ana...).body["state"], "awaiting_approval") // these arguments were rejected, so the retry needs approval
	is.Equal(h.send("POST", "/jobs/"+id+"/approve", "", root...).status, http.StatusOK)
	h.untilAs(id, job.Running, ana...)
	is.True(h.send("POST", "/admin/workers/jobs/"+id+"/force-cancel", "", root...).status < 300)
	is.Equal(h.send("POST", "/jobs/"+id+"/retry", "", ana...).body["state"], "pending") // these arguments have already been approved
}

func TestApprovedChainsNextStepArguments(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := risky(t)
	ana, root := []string{"X-Who", "ana"}, []string{"X-Who", "root"}
	id := h.send("POST", "/jobs", `{"kind":"echo","chain":[{"kind":"hold","args":{"n":1}}]}`, ana...).body["id"].(string)
	is.Equal(h.send("POST", "/jobs/"+id+"/approve", "", root...).status, http.StatusOK)
	h.untilAs(id, job.Succeeded, ana...)
	step := h.send("GET", "/jobs?pipeline="+id+"&kind=hold", "", ana...).body["jobs"].([]any)[0].(map[string]any)["id"].(string)
	is.True(h.send("POST", "/admin/workers/jobs/"+step+"/force-cancel", "", root...).status < 300)
	for _, path := range []string{"/jobs/" + step, "/pipelines/" + id} {
		a := h.send("POST", path+"/retry", `{"args":{"n":2}}`, ana...)
		is.Equal(a.status, http.StatusForbidden) // the new arguments were never approved
		is.Equal(a.body["code"], "forbidden")
	}
	is.Equal(h.send("POST", "/pipelines/"+id+"/retry", "", ana...).status, http.StatusAccepted) // the original arguments were approved
	is.True(h.send("POST", "/admin/workers/jobs/"+step+"/force-cancel", "", root...).status < 300)
	is.Equal(h.send("POST", "/jobs/"+step+"/retry", `{"args":{"n":3}}`, root...).status, http.StatusAccepted) // an approver may change the arguments
	is.True(h.send("POST", "/admin/workers/jobs/"+step+"/force-cancel", "", root...).status < 300)
	for _, table := range []string{"done", "jobs"} { // simulates retention removing the first job before the failed step
		_, err := inside.Of(h.Runner).Store.Pool().Exec(t.Context(), `delete from trapeze.`+table+` where id = $1::text::bigint`, id)
		is.NoErr(err)
	}
	is.Equal(h.send("POST", "/jobs/"+step+"/retry", `{"args":{"n":4}}`, ana...).status, http.StatusForbidden) // the step's lane requires approval

	free := h.send("POST", "/jobs", `{"kind":"echo","chain":[{"kind":"wait"}]}`, ana...).body["id"].(string)
	h.untilAs(free, job.Succeeded, ana...)
	last := h.send("GET", "/jobs?pipeline="+free+"&kind=wait", "", ana...).body["jobs"].([]any)[0].(map[string]any)["id"].(string)
	is.True(h.send("POST", "/admin/workers/jobs/"+last+"/force-cancel", "", root...).status < 300)
	is.Equal(h.send("POST", "/jobs/"+last+"/retry", `{"args":{"n":2}}`, ana...).status, http.StatusAccepted) // if nothing was approved, the submitter may change the arguments
}
