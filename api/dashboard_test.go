package api_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/matryer/is"
	"golang.org/x/net/html"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// hostile lists strings that jobs may contain. Each would take effect if a page included it as markup.
var hostile = []string{
	`<script>alert(1)</script>`,
	`"><img src=x onerror=alert(1)>`,
	`'><svg/onload=alert(1)>`,
	`</pre></textarea></title><iframe src=//evil.example>`,
	`javascript:alert(1)`,
	`" autofocus onfocus="alert(1)`,
	`{{.Root}}${alert(1)}`,
	`<!--><style>*{display:none}</style>`,
	"\u202egnp.exe\u2066",
}

// pod is a runner with a dashboard. Its name contains characters that only earlier versions accepted.
type pod struct {
	*runner.Runner
	t   *testing.T
	url string
}

func newPod(t *testing.T, o api.Options) *pod {
	t.Helper()
	r, err := runner.New(pgtest.Pool(t), runner.Options{MaxAttempts: 1, Slots: 4, HeartbeatInterval: 100 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	runner.HandleRaw(r, "fail", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		return nil, errors.New(strings.Join(hostile, "\n"))
	})
	runner.HandleRaw(r, "echo", func(_ context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		return runner.Done(j.Args.JSON), nil
	})
	runner.HandleRaw(r, "wait", func(ctx context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		j.Progress(3, 9)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	runner.HandleRaw(r, "fan", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		return runner.FanOut(raw("fail"), raw("echo"), raw("wait")).Join(raw("echo")), nil
	})
	e := echo.New()
	api.Mount(e.Group("/trapeze"), r, o)
	web := httptest.NewServer(e)
	runs(t, r, web)
	p := &pod{Runner: r, t: t, url: web.URL + "/trapeze/ui/"}
	p.exec(`update trapeze.pods set name = $1`, hostile[0])
	return p
}

// exec writes values that only earlier versions accepted.
func (p *pod) exec(sql string, args ...any) {
	p.t.Helper()
	pgtest.Exec(p.t, inside.Of(p.Runner).Store.Pool(), sql, args...)
}

func raw(kind string) runner.Raw { return runner.Raw{Name: kind, JSON: []byte(`{"n": 1}`)} }

func (p *pod) put(args job.Args, o ...runner.EnqueueOption) int64 {
	p.t.Helper()
	made, err := p.Enqueue(p.t.Context(), args, o...)
	if err != nil {
		p.t.Fatal(err)
	}
	return made.ID
}

func (p *pod) until(id int64, state job.State) {
	p.t.Helper()
	pgtest.Wait(p.t, "the job is "+string(state), func() bool {
		j, err := p.GetJob(p.t.Context(), id)
		return err == nil && j.State == state
	})
}

// get requests and parses a page.
func (p *pod) get(address string, header ...string) (*http.Response, *html.Node) {
	p.t.Helper()
	response, body := p.raw(address, header...)
	page, err := html.Parse(strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, request := range offered(page) {
		mustBeRoute(p.t, request)
	}
	return response, page
}

// mustBeRoute fails the test if the API has no route for the request of a button or a form, such as "POST jobs/7/cancel".
func mustBeRoute(t *testing.T, request string) {
	t.Helper()
	method, path, found := strings.Cut(request, " ")
	if !found {
		return // a bulk command, which the page completes
	}
	path, _, _ = strings.Cut(path, "?")
	if !slices.ContainsFunc(api.Routes(), func(route api.Route) bool {
		matches := regexp.MustCompile("^" + regexp.MustCompile(":[a-z]+").ReplaceAllString(route.Path, "[^/]+") + "$")
		return route.Method == method && matches.MatchString("/"+path)
	}) {
		t.Errorf("a button sends %s, which is no route", request)
	}
}

// raw requests a page or a file and returns the response with its text.
func (p *pod) raw(address string, header ...string) (*http.Response, string) {
	p.t.Helper()
	request, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, address, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		p.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return response, string(body)
}

// attribute returns the value of a node's attribute.
func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// said returns the text of a page.
func visibleText(page *html.Node) string {
	var b strings.Builder
	for n := range page.Descendants() {
		if n.Type == html.TextNode {
			b.WriteString(n.Data + "\n")
		}
	}
	return b.String()
}

// offered returns the requests that a page's buttons and forms send.
func offered(page *html.Node) (list []string) {
	for n := range page.Descendants() {
		for _, name := range []string{"data-send", "data-form", "data-bulk", "data-many"} {
			if v := attribute(n, name); n.Type == html.ElementNode && v != "" {
				list = append(list, v)
			}
		}
	}
	return list
}

// mustBeHarmless fails the test if a page contains anything that a browser could run or load, except the dashboard's own files.
func mustBeHarmless(t *testing.T, address string, page *html.Node) {
	t.Helper()
	for n := range page.Descendants() {
		if n.Type == html.CommentNode {
			t.Errorf("%s has a comment: %s", address, n.Data)
		}
		if n.Type != html.ElementNode {
			continue
		}
		if slices.Contains([]string{"img", "iframe", "style", "object", "embed", "base", "video", "audio"}, n.Data) {
			t.Errorf("%s has an element %s", address, n.Data)
		}
		if n.Data == "script" && (attribute(n, "src") == "" || n.FirstChild != nil) {
			t.Errorf("%s has a script inside", address)
		}
		for _, a := range n.Attr {
			value := strings.ToLower(strings.TrimSpace(a.Val))
			switch {
			case strings.HasPrefix(a.Key, "on"), a.Key == "style", a.Key == "srcdoc":
				t.Errorf("%s: %s has an attribute %s", address, n.Data, a.Key)
			case a.Key == "autofocus" && n.Data != "button" && n.Data != "input":
				t.Errorf("%s: %s takes the focus", address, n.Data)
			case slices.Contains([]string{"src", "href", "action", "formaction"}, a.Key) && (strings.Contains(value, ":") && !strings.Contains(value, "?") || strings.HasPrefix(value, "//")):
				t.Errorf("%s: %s leads to %s", address, n.Data, a.Val)
			}
		}
	}
}

func TestDashboardLinksAndJobText(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPod(t, api.Options{InsecureAllowAll: true})
	for i, text := range hostile {
		id := p.put(runner.Raw{Name: "fail", JSON: []byte(`{"note": ` + quoted(hostile[i]) + `}`)}, runner.Subject(text+"/"+text), runner.Submitter(text), runner.Unique(text, runner.WhileActive))
		p.until(id, job.Failed)
		p.exec(`update trapeze.jobs set kind = $1 where id = $2`, text, id)
	}
	waits := p.put(raw("wait"), runner.Subject(hostile[1]))
	p.until(waits, job.Running)
	p.put(raw("wait"), runner.Subject(hostile[1])) // blocked by the running job with the same subject
	p.put(raw("echo"), runner.Delay(time.Hour))
	p.put(raw("echo"), runner.NeedsApproval())
	chain := p.put(runner.Chain(raw("echo"), runner.With(raw("fan")), runner.With(raw("echo"), runner.Subject(hostile[2]))), runner.Pipeline(hostile[3]))
	pgtest.Wait(t, "the fan-out waits for its last branch", func() bool {
		pipeline, err := p.Admin("").Pipeline(t.Context(), chain)
		return err == nil && pipeline.Progress != nil && pipeline.Progress.Done != nil && *pipeline.Progress.Done == 2
	})
	ended := p.put(raw("echo"), runner.Delay(time.Hour))
	_, err := p.Admin(hostile[4]).Cancel(t.Context(), ended)
	is.NoErr(err)

	var everything strings.Builder
	seen := map[string]bool{p.url: true}
	for queue := []string{p.url}; len(queue) > 0; queue = queue[1:] {
		at, err := url.Parse(queue[0])
		is.NoErr(err)
		response, page := p.get(queue[0])
		if response.StatusCode != http.StatusOK {
			t.Errorf("%s answers %d", queue[0], response.StatusCode)
		}
		if !strings.HasPrefix(response.Header.Get("Content-Type"), "text/html") {
			continue
		}
		mustBeHarmless(t, queue[0], page)
		everything.WriteString(visibleText(page))
		for n := range page.Descendants() {
			for _, name := range []string{"href", "src"} {
				if link := attribute(n, name); link != "" && !strings.HasPrefix(link, "#") {
					there, err := at.Parse(link)
					is.NoErr(err)
					there.Fragment = ""
					if !seen[there.String()] && len(seen) < 300 {
						seen[there.String()] = true
						queue = append(queue, there.String())
					}
				}
			}
		}
	}
	is.True(len(seen) > 30) // pages and static files
	for _, text := range hostile[:8] {
		is.True(strings.Contains(everything.String(), text)) // the text is shown, not dropped
	}
	is.True(!strings.Contains(everything.String(), "\u202e")) // no right-to-left override
	for _, want := range []string{"Another job is running for the subject", "Awaiting approval", "Not due yet", "3 of 9", "3 children"} {
		is.True(strings.Contains(everything.String(), want)) // blockers and progress are shown
	}
}

// quoted returns s as a JSON string.
func quoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// nameAndRole authenticates a request by its X-Name and X-Role headers, without checking them.
func nameAndRole(r *http.Request) (api.Principal, error) {
	name := r.Header.Get("X-Name")
	if name == "" {
		return api.Principal{}, access.ErrUnauthenticated
	}
	return api.Principal{Name: name, Roles: []string{r.Header.Get("X-Role")}}, nil
}

func TestDashboardButtonsByRole(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPod(t, api.Options{Authenticate: nameAndRole})
	running := p.put(raw("wait"), runner.Submitter("ana"))
	p.until(running, job.Running)
	failed := p.put(raw("fail"), runner.Submitter("ana"))
	p.until(failed, job.Failed)
	at := func(path string, id int64) string { return p.url + path + "/" + formatID(id) }
	as := func(role string) []string { return []string{"X-Name", "bob", "X-Role", role} }

	response, page := p.get(p.url)
	is.Equal(response.StatusCode, http.StatusUnauthorized) // no credentials
	is.Equal(offered(page), nil)
	_, page = p.get(at("jobs", running), as(access.PlatformAdmin)...)
	is.Equal(len(offered(page)), 2) // cancel and force cancel
	_, page = p.get(at("jobs", failed), as(access.PlatformAdmin)...)
	is.Equal(offered(page), []string{"POST jobs/" + formatID(failed) + "/retry", "POST jobs/" + formatID(failed) + "/retry"}) // one without and one with new arguments
	_, page = p.get(at("jobs", failed), as("operator")...)
	is.Equal(offered(page), []string{"POST jobs/" + formatID(failed) + "/retry"}) // operators do not see all arguments, so they cannot change them
	for _, address := range []string{p.url, p.url + "lanes", p.url + "pods", p.url + "jobs", at("jobs", running), at("jobs", failed)} {
		response, page = p.get(address, as("viewer")...)
		is.Equal(response.StatusCode, http.StatusOK)
		is.Equal(offered(page), nil) // a viewer may change nothing
	}
	response, _ = p.get(at("jobs", running), as("submitter")...)
	is.Equal(response.StatusCode, http.StatusNotFound) // another user's job
	response, page = p.get(at("jobs", running), "X-Name", "ana", "X-Role", "submitter")
	is.Equal(response.StatusCode, http.StatusOK) // ana's own job
	is.Equal(offered(page), []string{"POST jobs/" + formatID(running) + "/cancel"})
	response, _ = p.get(p.url, as("submitter")...)
	is.Equal(response.StatusCode, http.StatusSeeOther) // redirected to the first page that a submitter may see
	_, page = p.get(p.url+"jobs", as("submitter")...)
	is.True(strings.Contains(visibleText(page), "There are no jobs yet")) // bob has submitted no jobs
	response, _ = p.get(p.url+"audit", as("submitter")...)
	is.Equal(response.StatusCode, http.StatusForbidden)
}

func formatID(id int64) string { return strconv.FormatInt(id, 10) }
