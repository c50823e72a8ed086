package api_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// searched is a host with jobs submitted by ana and bob. It holds those jobs' IDs, keyed by name.
type searched struct {
	*host
	ids map[string]string
}

func newSearched(t *testing.T) searched {
	t.Helper()
	h := newHost(t, api.Options{Authenticate: byName(map[string][]string{
		"root": {"platform_admin"}, "olga": {"operator"}, "vera": {"viewer"}, "ana": {"submitter"}, "bob": {"submitter"}, "both": {"submitter", "viewer"},
	})}, func(r *runner.Runner) {
		runner.HandleRaw(r, "fails", func(_ context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			return nil, errors.New("dial db-7: connection refused (100% sure)")
		})
	})
	s := searched{h, map[string]string{}}
	for _, one := range []struct{ name, who, body string }{
		{"ana waits", "ana", `{"kind":"echo","subject":"invoice/2025","delay":3600,"args":{"user":{"id":7,"name":"Zoë Lee"},"tags":["x","y"]}}`},
		{"bob waits", "bob", `{"kind":"echo","subject":"invoice/2026","delay":3600,"args":{"user":{"id":8}}}`},
		{"ana failed", "ana", `{"kind":"fails","subject":"Import","args":{"user":{"id":7}}}`},
		{"bob failed", "bob", `{"kind":"fails","subject":"import","args":{"user":{"id":7},"ok":true}}`},
		{"ana done", "ana", `{"kind":"echo","subject":"invoice/2025","args":{"user":{"id":7}}}`},
		{"both waits", "both", `{"kind":"wait","subject":"copy of {ana done}","delay":3600,"args":{"user":{"id":7}}}`},
	} {
		s.ids[one.name] = h.send("POST", "/jobs", strings.ReplaceAll(one.body, "{ana done}", s.ids["ana done"]), "X-Who", one.who).body["id"].(string)
	}
	for name, state := range map[string]job.State{"ana failed": job.Failed, "bob failed": job.Failed, "ana done": job.Succeeded} {
		h.untilAs(s.ids[name], state, "X-Who", "root")
	}
	return s
}

// found runs a search and returns the names of the matching jobs, sorted, and the response's status.
func (s searched) found(who, search string, more ...string) (names []string, status int) {
	s.t.Helper()
	a := s.send("GET", "/jobs?search="+url.QueryEscape(search)+strings.Join(more, ""), "", "X-Who", who)
	if a.status != http.StatusOK {
		return nil, a.status
	}
	names = []string{}
	for _, one := range a.body["jobs"].([]any) {
		for name, id := range s.ids {
			if one.(map[string]any)["id"] == id {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names, a.status
}

func TestJobSearchTextErrorArguments(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	s := newSearched(t)
	for _, c := range []struct {
		search, more string
		want         []string
	}{
		{"invoice/2025", "", []string{"ana done", "ana waits"}},
		{"INVOICE", "", []string{"ana done", "ana waits", "bob waits"}}, // the search ignores case
		{"invoice", "&state=pending,failed", []string{"ana waits", "bob waits"}},
		{"invoice", "&state=succeeded", []string{"ana done"}},
		{"ana", "", []string{"ana done", "ana failed", "ana waits"}},     // a submitter
		{"fail", "", []string{"ana failed", "bob failed"}},               // a kind
		{"connection refused", "", []string{"ana failed", "bob failed"}}, // an error
		{`error="connection refused" bob`, "", []string{"bob failed"}},   // both conditions
		{"100% sure", "", []string{"ana failed", "bob failed"}},          // % is not a wildcard
		{"1_0% sure", "", []string{}},                                    // _ is not a wildcard either
		{"error=refused", "&state=failed", []string{"ana failed", "bob failed"}},
		{"#" + s.ids["ana done"], "", []string{"ana done"}},
		{s.ids["ana done"], "", []string{"ana done"}},                   // a number that is an ID is not searched for as text
		{`"` + s.ids["ana done"] + `"`, "", []string{"both waits"}},     // unless the number is quoted
		{s.ids["ana done"], "&state=pending", []string{"both waits"}},   // or the job is in a different state
		{"#" + s.ids["bob waits"], "&since=1ns", []string{"bob waits"}}, // a job is found by its ID regardless of its age
		{"#" + s.ids["bob waits"], "&state=failed", []string{}},
		{"args.user.id=7", "", []string{"ana failed", "ana waits", "bob failed", "both waits"}}, // args are searched in unfinished and failed jobs
		{"args.user.id=7 args.ok=true", "", []string{"bob failed"}},
		{`args.user.name="Zoë Lee"`, "", []string{"ana waits"}},
		{"args.tags.1=y", "", []string{"ana waits"}},
		{"args.user.id=7 import", "", []string{"ana failed", "bob failed"}},
		{"args.user.id=7 error=refused", "&state=failed", []string{"ana failed", "bob failed"}},
		{"args.user.id=70", "", []string{}},
		{"args.user=7", "", []string{}},
		{"nothing like it", "", []string{}},
	} {
		got, status := s.found("root", c.search, c.more)
		is.Equal(status, http.StatusOK)
		if !slices.Equal(got, c.want) {
			t.Errorf("search %q%s finds %q, want %q", c.search, c.more, got, c.want)
		}
	}
	for _, wrong := range []string{"args.=7", "args.user.id", "error=", "error=a error=b", strings.Repeat("x", 501), strings.Repeat("args.a=1 ", 6)} {
		_, status := s.found("root", wrong)
		is.Equal(status, http.StatusBadRequest)
	}
	_, status := s.found("root", "args.user.id=7", "&state=succeeded")
	is.Equal(status, http.StatusBadRequest) // too many succeeded jobs to search their args
	_, status = s.found("root", "x", "&current=true")
	is.Equal(status, http.StatusBadRequest)
}

func TestJobSearchWithoutPermission(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	s := newSearched(t)
	want := func(who, search string, names ...string) {
		t.Helper()
		got, status := s.found(who, search)
		is.Equal(status, http.StatusOK)
		is.Equal(got, append([]string{}, names...))
	}
	// Every condition finds only the submitter's own jobs.
	want("bob", "invoice", "bob waits")
	want("bob", "ana")
	want("bob", "refused", "bob failed")
	want("bob", "error=refused", "bob failed")
	want("bob", "args.user.id=7", "bob failed")
	want("bob", "#"+s.ids["ana waits"])
	want("bob", "#"+s.ids["bob waits"], "bob waits")
	// Without jobs:args, neither explicit conditions nor plain text search args and errors.
	for _, who := range []string{"olga", "vera"} {
		want(who, "invoice", "ana done", "ana waits", "bob waits")
		want(who, "refused")
		for _, secret := range []string{"error=refused", "args.user.id=7", "invoice args.user.id=7"} {
			a := s.send("GET", "/jobs?search="+url.QueryEscape(secret), "", "X-Who", who)
			is.Equal(a.status, http.StatusForbidden)
			is.True(strings.Contains(a.text, "jobs:args"))
			is.Equal(s.send("GET", "/ui/jobs?search="+url.QueryEscape(secret), "", "X-Who", who).status, http.StatusForbidden)
		}
	}
	// A caller who may read all jobs, but has jobs:args only for its own, cannot search the args and errors of other jobs.
	want("both", "args.user.id=7", "both waits")
	want("both", "error=refused")
	want("both", "refused")
	want("both", "invoice", "ana done", "ana waits", "bob waits")

	// A search of other submitters' secrets is audited, even if it finds nothing.
	before := s.readings()
	want("root", "args.user.id=70")
	is.Equal(s.readings(), before+1)
	want("bob", "args.user.id=70")
	is.Equal(s.readings(), before+1)
}

func TestTheJobsPageSearches(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	s := newSearched(t)
	page := s.send("GET", "/ui/jobs?search=invoice&state=pending&state=failed", "", "X-Who", "root").text
	is.True(strings.Contains(page, "job-"+s.ids["ana waits"]) && strings.Contains(page, "job-"+s.ids["bob waits"]))
	is.True(!strings.Contains(page, "job-"+s.ids["ana done"]) && !strings.Contains(page, "job-"+s.ids["ana failed"]))
	is.True(strings.Contains(page, `value="invoice"`))
	is.Equal(len(regexp.MustCompile(`name="state" value="\w+" checked`).FindAllString(page, -1)), 2) // both states are still selected
	is.True(!strings.Contains(page, "all matching"))                                                 // a command on all matching jobs would ignore the search
	page = s.send("GET", "/ui/jobs?state=pending&state=failed", "", "X-Who", "root").text
	is.True(strings.Contains(page, "job-"+s.ids["bob failed"]) && !strings.Contains(page, "job-"+s.ids["ana done"]))
	is.Equal(s.send("GET", "/ui/jobs?search=args.x", "", "X-Who", "root").status, http.StatusBadRequest)
}
