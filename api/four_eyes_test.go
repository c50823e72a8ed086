package api_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// fourEyes returns a host that requires approval by another person. ada and olga have all permissions; sam can submit jobs. Jobs of kind
// fail need approval, and jobs of kind echo do not.
func fourEyes(t *testing.T) *host {
	t.Helper()
	return approving(t, true)
}

// approving is like fourEyes, but if everywhere is false, only lanes can require approval by another person.
func approving(t *testing.T, everywhere bool) *host {
	t.Helper()
	is := is.New(t)
	r, err := runner.New(pgtest.Pool(t), runner.Options{FourEyes: everywhere, MaxAttempts: 1, HeartbeatInterval: 100 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	is.NoErr(err)
	runner.HandleRaw(r, "fail", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		return nil, errors.New("it fails")
	})
	runner.HandleRaw(r, "echo", func(_ context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		return runner.Done(j.Args.JSON), nil
	})
	e := echo.New()
	api.Mount(e.Group("/trapeze"), r, api.Options{Authenticate: byName(map[string][]string{"ada": {"platform_admin"}, "olga": {"platform_admin"}, "sam": {"submitter"}})})
	web := httptest.NewServer(e)
	h := &host{Runner: r, t: t, url: web.URL + "/trapeze"}
	h.stop = runs(t, r, web)
	is.Equal(h.send("PUT", "/admin/workers/lanes/risky", `{"requires_approval":true,"kinds":["fail"]}`, "X-Who", "ada").status, http.StatusOK)
	return h
}

func TestFourEyesJobApproval(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := fourEyes(t)
	ada, olga, sam := []string{"X-Who", "ada"}, []string{"X-Who", "olga"}, []string{"X-Who", "sam"}
	id := h.send("POST", "/jobs", `{"kind":"fail","args":{"n":1}}`, ada...).body["id"].(string)
	refused := h.send("POST", "/jobs/"+id+"/approve", "", ada...)
	is.Equal(refused.status, http.StatusForbidden)
	is.Equal(refused.body["code"], "own_submission")
	is.True(errors.Is(api.ErrorOf("own_submission"), job.ErrOwnSubmission)) // commands recognize the code
	is.Equal(h.send("GET", "/jobs/"+id, "", ada...).body["state"], "awaiting_approval")
	entry := h.send("GET", "/admin/audit?limit=1", "", olga...).body["audit"].([]any)[0].(map[string]any)
	is.Equal([]any{entry["actor"], entry["allowed"]}, []any{"ada", false}) // the refusal is audited

	is.Equal(h.send("POST", "/jobs/"+id+"/approve", "", olga...).status, http.StatusOK)
	h.untilAs(id, job.Failed, ada...)
	is.Equal(h.send("POST", "/jobs/"+id+"/retry", `{"args":{"n":2}}`, olga...).status, http.StatusAccepted) // the new arguments need approval
	is.Equal(h.send("POST", "/jobs/"+id+"/approve", "", olga...).body["code"], "own_submission")            // olga supplied these arguments
	is.Equal(h.send("POST", "/jobs/"+id+"/cancel", "", ada...).status, http.StatusOK)
	is.Equal(h.send("POST", "/jobs/"+id+"/retry", "", ada...).status, http.StatusAccepted)
	for _, who := range [][]string{ada, olga} { // the submitter, and the person who changed the arguments
		is.Equal(h.send("POST", "/jobs/"+id+"/approve", "", who...).body["code"], "own_submission")
	}

	sams := h.send("POST", "/jobs", `{"kind":"fail"}`, sam...).body["id"].(string)
	is.Equal(h.send("POST", "/jobs/"+sams+"/approve", "", sam...).body["code"], "forbidden")
	is.Equal(h.send("POST", "/jobs/"+sams+"/approve", "", ada...).status, http.StatusOK)
	made, err := h.Enqueue(t.Context(), runner.Raw{Name: "fail"}, runner.NeedsApproval())
	is.NoErr(err)
	is.NoErr(h.Admin("ada").Approve(t.Context(), made.ID)) // a job submitted by the program itself has no submitter
	made, err = h.Enqueue(t.Context(), runner.Raw{Name: "fail"}, runner.NeedsApproval(), runner.Submitter("ada"))
	is.NoErr(err)
	is.True(errors.Is(h.Admin("ada").Approve(t.Context(), made.ID), runner.ErrOwnSubmission)) // the rule also applies to the Go API
}

func TestFourEyesPipelineScheduleBypass(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := fourEyes(t)
	ada, olga := []string{"X-Who", "ada"}, []string{"X-Who", "olga"}
	id := h.send("POST", "/jobs", `{"kind":"echo","chain":[{"kind":"fail","args":{"n":1}}]}`, ada...).body["id"].(string)
	is.Equal(h.send("POST", "/jobs/"+id+"/approve", "", ada...).body["code"], "own_submission")
	is.Equal(h.send("POST", "/jobs/"+id+"/approve", "", olga...).status, http.StatusOK)
	var step string
	pgtest.Wait(t, "the second step has failed", func() bool {
		failed := h.send("GET", "/jobs?state=failed&pipeline="+id, "", ada...).body["jobs"].([]any)
		if len(failed) == 1 {
			step = failed[0].(map[string]any)["id"].(string)
		}
		return step != ""
	})
	for _, who := range [][]string{ada, olga} {
		for _, path := range []string{"/jobs/" + step, "/pipelines/" + id} {
			is.Equal(h.send("POST", path+"/retry", `{"args":{"n":2}}`, who...).status, http.StatusForbidden) // the new arguments were never approved
		}
	}
	is.Equal(h.send("POST", "/pipelines/"+id+"/retry", "", ada...).status, http.StatusAccepted) // the original arguments were approved

	for _, setting := range []string{`{"expression":"@yearly","kind":"fail"}`, `{"expression":"@yearly","kind":"echo","lane":"risky"}`} {
		is.Equal(h.send("PUT", "/admin/workers/schedules/nightly", setting, ada...).status, http.StatusForbidden) // the schedule's jobs would not need approval
	}
	is.Equal(h.send("PUT", "/admin/workers/schedules/nightly", `{"expression":"@yearly","kind":"echo"}`, ada...).status, http.StatusOK)
	is.Equal(h.send("PUT", "/admin/workers/lanes/risky", `{"requires_approval":true,"kinds":["echo"]}`, olga...).status, http.StatusOK)
	is.Equal(h.send("POST", "/admin/workers/schedules/nightly/trigger", "", ada...).status, http.StatusForbidden)
}

// While the approval dialog is open, the submitter could cancel the job and retry it with different arguments.
func TestApprovalOfChangedArguments(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := fourEyes(t)
	ada, olga := []string{"X-Who", "ada"}, []string{"X-Who", "olga"}
	id := h.send("POST", "/jobs", `{"kind":"fail","args":{"n":1}}`, ada...).body["id"].(string)
	seen := h.send("GET", "/jobs/"+id, "", olga...).body["epoch"].(float64)
	expecting := func(command string, epoch any) answer {
		return h.send("POST", fmt.Sprintf("/jobs/%s/%s?epoch=%v", id, command, epoch), "", olga...)
	}
	is.Equal(h.send("POST", "/jobs/"+id+"/cancel", "", ada...).status, http.StatusOK)
	is.Equal(h.send("POST", "/jobs/"+id+"/retry", `{"args":{"n":2}}`, ada...).body["state"], "awaiting_approval")
	for _, command := range []string{"approve", "cancel"} {
		refused := expecting(command, seen)
		is.Equal([]any{refused.status, refused.body["code"], refused.body["message"]}, []any{http.StatusConflict, "conflict", "changed since you read it"})
		is.Equal(expecting(command, "two").status, http.StatusBadRequest)
	}
	is.True(errors.Is(api.ErrorOf("conflict"), job.ErrConflict)) // commands recognize the code
	is.Equal(h.send("GET", "/jobs/"+id, "", ada...).body["state"], "awaiting_approval")
	page := h.send("GET", "/ui/jobs/"+id, "", olga...).text
	for _, command := range []string{"approve", "cancel"} {
		is.True(strings.Contains(page, fmt.Sprintf(`data-send="POST jobs/%s/%s?epoch=%v"`, id, command, seen+1))) // as shown in the dialog
	}
	is.Equal(expecting("approve", seen+1).status, http.StatusOK)
	h.untilAs(id, job.Failed, ada...)

	other := h.send("POST", "/jobs", `{"kind":"fail"}`, ada...).body["id"].(string)
	is.Equal(h.send("POST", "/jobs/"+other+"/cancel?epoch=1", "", olga...).body["state"], "cancelled")
	is.Equal(h.send("POST", "/jobs/"+other+"/cancel?epoch=9", "", olga...).status, http.StatusOK) // the job has already ended
}

func TestFourEyesLaneSetting(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := approving(t, false)
	ada, olga := []string{"X-Who", "ada"}, []string{"X-Who", "olga"}
	submit := func(body string) string { return h.send("POST", "/jobs", body, ada...).body["id"].(string) }
	const lane = "/admin/workers/lanes/risky"
	is.Equal(h.send("POST", "/jobs/"+submit(`{"kind":"fail"}`)+"/approve", "", ada...).status, http.StatusOK) // the lane does not yet require another person
	is.Equal(h.send("PATCH", lane, `{"four_eyes":true}`, ada...).status, http.StatusOK)
	is.Equal(h.send("PATCH", lane, `{"requires_approval":false}`, ada...).status, http.StatusUnprocessableEntity) // approval would no longer be required

	id := submit(`{"kind":"fail"}`)
	chain := submit(`{"kind":"echo","chain":[{"kind":"echo"},{"kind":"fail","args":{"n":1}}]}`)
	for name, asks := range map[string]string{"of its lane": id, "of a later step": chain, "of its kind": submit(`{"kind":"fail","lane":"default"}`),
		"of a later step's lane": submit(`{"kind":"echo","chain":[{"kind":"echo","lane":"risky"}]}`)} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			is.Equal(h.send("POST", "/jobs/"+asks+"/approve", "", ada...).body["code"], "own_submission")
			for _, path := range []string{"/ui/", "/ui/jobs/" + asks} {
				is.True(!strings.Contains(h.send("GET", path, "", ada...).text, "jobs/"+asks+"/approve"))
				is.True(strings.Contains(h.send("GET", path, "", ada...).text, "another person must approve it"))
				is.True(strings.Contains(h.send("GET", path, "", olga...).text, "jobs/"+asks+"/approve"))
			}
		})
	}
	other := submit(`{"kind":"echo","needs_approval":true}`)
	is.Equal(h.send("POST", "/jobs/"+other+"/approve", "", ada...).status, http.StatusOK) // the other lane does not require another person

	is.Equal(h.send("POST", "/jobs/"+chain+"/approve", "", olga...).status, http.StatusOK)
	var step string
	pgtest.Wait(t, "the last step has failed", func() bool {
		for _, one := range h.send("GET", "/jobs?state=failed&pipeline="+chain, "", ada...).body["jobs"].([]any) {
			step = one.(map[string]any)["id"].(string)
		}
		return step != ""
	})
	is.Equal(h.send("POST", "/jobs/"+step+"/retry", `{"args":{"n":2}}`, ada...).status, http.StatusForbidden) // the new arguments were never approved
	is.Equal(h.send("PUT", "/admin/workers/schedules/nightly", `{"expression":"@yearly","kind":"fail"}`, ada...).status, http.StatusForbidden)
	is.Equal(h.send("PATCH", lane, `{"four_eyes":false}`, olga...).status, http.StatusOK)
	is.Equal(h.send("POST", "/jobs/"+id+"/approve", "", ada...).status, http.StatusOK)
}

// A template's rule holds before the first job has made a lane.
func TestFourEyesOfLaneTemplate(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := approving(t, false)
	ada, olga := []string{"X-Who", "ada"}, []string{"X-Who", "olga"}
	is.Equal(h.send("PUT", "/admin/workers/lanes/tenant%2F%2A", `{"requires_approval":true,"four_eyes":true}`, ada...).status, http.StatusOK)
	for _, body := range []string{`{"kind":"echo","lane":"tenant/1"}`, `{"kind":"echo","lane":"default","chain":[{"kind":"echo","lane":"tenant/2"}]}`} {
		id := h.send("POST", "/jobs", body, ada...).body["id"].(string)
		is.Equal(h.send("POST", "/jobs/"+id+"/approve", "", ada...).body["code"], "own_submission")
		is.True(strings.Contains(h.send("GET", "/ui/", "", ada...).text, "another person must approve it"))
		is.Equal(h.send("POST", "/jobs/"+id+"/approve", "", olga...).status, http.StatusOK)
		pgtest.Wait(t, "the job has run", func() bool { return h.send("GET", "/jobs/"+id, "", ada...).body["state"] == "succeeded" })
	}
}
