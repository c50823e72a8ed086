package api_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/matryer/is"
	"golang.org/x/net/html"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// form returns the form that sends the given request.
func form(page *html.Node, sends string) *html.Node {
	for n := range page.Descendants() {
		if attribute(n, "data-form") == sends {
			return n
		}
	}
	return &html.Node{}
}

// field returns a form field's value.
func field(form *html.Node, name string) string {
	for n := range form.Descendants() {
		if attribute(n, "name") == name {
			return visibleText(n)
		}
	}
	return ""
}

func TestDashboardLaneFormAndDeletion(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPod(t, api.Options{InsecureAllowAll: true})
	kinds := []string{hostile[0], "a b", "c,d"}
	_, err := p.Admin("ana").SetLane(t.Context(), "reports", job.LaneChange{Kinds: &kinds})
	is.NoErr(err)
	_, page := p.get(p.url + "lanes")
	is.Equal(strings.TrimSpace(field(form(page, "PATCH admin/workers/lanes/default"), "kinds")), "")
	shown := strings.Split(strings.TrimSpace(field(form(page, "PATCH admin/workers/lanes/reports"), "kinds")), "\n")
	slices.Sort(shown)
	slices.Sort(kinds)
	is.Equal(shown, kinds) // one kind per line, even with special characters
	others := strings.Split(strings.TrimSpace(field(form(page, "DELETE admin/workers/lanes/reports"), "move_to")), "\n")
	is.Equal(others, []string{"none: delete only if it has no jobs", "default"})
	is.Equal(form(page, "DELETE admin/workers/lanes/default").Data, "") // the default lane cannot be deleted

	request, err := http.NewRequestWithContext(t.Context(), "DELETE", strings.TrimSuffix(p.url, "ui/")+"admin/workers/lanes/reports", strings.NewReader(`{"move_to":"default"}`))
	is.NoErr(err)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-Reason", "für das neue Jahr – 新年") // encoded as UTF-8, as the page's script does
	response, err := http.DefaultClient.Do(request)
	is.NoErr(err)
	is.NoErr(response.Body.Close())
	is.Equal(response.StatusCode, http.StatusOK)
	trail, err := admin.AuditTrail(t.Context(), inside.Of(p.Runner).Store, admin.AuditFilter{Target: "lane reports", Limit: 1})
	is.NoErr(err)
	is.Equal(trail[0].Reason, "für das neue Jahr – 新年")
}

func TestRetryFormInvisibleCharacters(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPod(t, api.Options{Authenticate: nameAndRole})
	args := `{"n":12345678901234567890123,"note":"</textarea><script>alert(1)</script>\n\u202egnp.exe` + "\u202e\u00a0\U000e0041" + `","ä":"é"}`
	id := p.put(runner.Raw{Name: "fail", JSON: []byte(args)}, runner.Submitter("ana"))
	p.until(id, job.Failed)
	_, page := p.get(p.url+"jobs/"+formatID(id), "X-Name", "bob", "X-Role", access.PlatformAdmin)
	mustBeHarmless(t, "the page", page)
	shown := strings.TrimSpace(field(form(page, "POST jobs/"+formatID(id)+"/retry"), "args"))
	is.True(!strings.ContainsAny(shown, "\u202e\u00a0\U000e0041")) // invisible characters are escaped
	exact := func(text string) (v any) {
		d := json.NewDecoder(bytes.NewReader([]byte(text)))
		d.UseNumber()
		is.NoErr(d.Decode(&v))
		return v
	}
	is.Equal(exact(shown), exact(args))

	long := p.put(runner.Raw{Name: "fail", JSON: []byte(`"` + strings.Repeat("x", 1<<17) + `"`)}, runner.Submitter("ana"))
	p.until(long, job.Failed)
	_, page = p.get(p.url+"jobs/"+formatID(long), "X-Name", "ana", "X-Role", "submitter")
	is.Equal(form(page, "POST jobs/"+formatID(long)+"/retry").Data, "") // the arguments are too long for a form
}
