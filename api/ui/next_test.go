package ui

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/access"
)

func TestLoginRedirectTargets(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	for next, want := range map[string]string{
		"jobs": "jobs", "jobs/7": "jobs/7", "jobs/7/children": "jobs/7/children", "settings/doctor": "settings/doctor", "jobs?state=failed&kind=a+b": "jobs?kind=a+b&state=failed", "pipelines/12?": "pipelines/12",
		"jobs?subject=%2F%2Fevil.example": "jobs?subject=%2F%2Fevil.example",
	} {
		is.Equal(Onward(next), want)
	}
	for _, next := range []string{"", "//evil.example", "/jobs", "https://evil.example/jobs", "https:evil.example", "javascript:alert(1)", `\\evil.example`,
		`jobs\..\..\..`, "jobs/../..", "jobs/..", "../jobs", "jobs/%2e%2e/x", "jobs//evil.example", "jobs/7/", "jobs/.", "jobs#x", "jobs\n", "jobs\r\nSet-Cookie: a=b",
		" jobs", "now", "jobs/7/nothing", "lanes/default", "jobs/1/no/such/page", "login", "logout", "static/app.js", "evil.example", "now.evil.example", "@evil.example", "jobs@evil.example",
		"jobs?q=" + strings.Repeat("x", maxNext)} {
		is.Equal(Onward(next), "") // not a page of the dashboard
	}
}

func FuzzLoginRedirectTarget(f *testing.F) {
	for _, next := range []string{"jobs/7?a=b", "//evil.example", "jobs/../..", "javascript:alert(1)", `\\x`, "jobs?%zz"} {
		f.Add(next)
	}
	root, err := url.Parse("https://here.example/prefix/ui/")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, next string) {
		to, err := root.Parse("./" + Onward(next))
		if err != nil || to.Host != root.Host || to.Scheme != root.Scheme || !strings.HasPrefix(to.Path, root.Path) {
			t.Fatalf("%q leads to %v (%v)", next, to, err)
		}
		for _, r := range Onward(next) {
			if r <= ' ' || r > '~' || r == '\\' || r == '#' {
				t.Fatalf("%q leads to an address with %q", next, r)
			}
		}
	})
}

func TestLoginFormRequestedPage(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	nobody := func(*http.Request) (access.Principal, error) { return access.Principal{}, access.ErrUnauthenticated }
	h := away(t, Options{Visitor: nobody, Sessions: true})
	is.True(strings.Contains(get(h, "/jobs/7").Body.String(), `name="next" value="jobs/7"`))
	is.True(strings.Contains(get(h, "/jobs?state=failed").Body.String(), `name="next" value="jobs?state=failed"`))
	is.True(strings.Contains(get(h, "/login?failed=1&next=jobs%2F7").Body.String(), `name="next" value="jobs/7"`)) // the requested page is kept after a failed login
	for _, path := range []string{"/", "/login", "/nothing", "/login?next=%2F%2Fevil.example", "/login?next=https%3A%2F%2Fevil.example"} {
		is.True(!strings.Contains(get(h, path).Body.String(), `name="next"`)) // there is no page to return to
	}
}
