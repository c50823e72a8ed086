package api_test

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"
	"golang.org/x/net/html"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

var thingLink = regexp.MustCompile(`^\./(?:jobs|pipelines)/(\d+)$`)

// listed returns the IDs on a list page and the next page's URL.
func listed(page *html.Node) (ids []string, next string) {
	for n := range page.Descendants() {
		if at := thingLink.FindStringSubmatch(attribute(n, "href")); at != nil {
			ids = append(ids, at[1])
		}
		if attribute(n, "rel") == "next" {
			next = attribute(n, "href")
		}
	}
	return ids, next
}

func TestOwnJobListPages(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPod(t, api.Options{Authenticate: nameAndRole})
	var hers []string
	for range 60 {
		hers = append(hers, formatID(p.put(raw("echo"), runner.Submitter("ana"), runner.Delay(time.Hour))))
		p.put(raw("echo"), runner.Submitter("bob"), runner.Delay(time.Hour))
	}
	slices.Reverse(hers)
	at, err := url.Parse(p.url)
	is.NoErr(err)
	var found []string
	pages := 0
	for next := "./jobs"; next != ""; pages++ {
		there, err := at.Parse(next)
		is.NoErr(err)
		response, page := p.get(there.String(), "X-Name", "ana", "X-Role", "submitter")
		is.Equal(response.StatusCode, http.StatusOK)
		var ids []string
		ids, next = listed(page)
		found = append(found, ids...)
	}
	is.Equal(pages, 2)
	is.Equal(found, hers) // all of ana's jobs and none of bob's

	chain := p.put(runner.Chain(raw("echo"), runner.With(raw("echo"))), runner.Submitter("ana"))
	p.put(runner.Chain(raw("echo"), runner.With(raw("echo"))), runner.Submitter("bob"))
	p.until(chain, job.Succeeded)
	response, page := p.get(p.url+"pipelines", "X-Name", "ana", "X-Role", "submitter")
	is.Equal(response.StatusCode, http.StatusOK)
	found, _ = listed(page)
	is.Equal(found, []string{formatID(chain)})
	response, page = p.get(p.url+"audit", "X-Name", "opa", "X-Role", "operator")
	is.Equal(response.StatusCode, http.StatusOK)
	_, next := listed(page)
	is.Equal(next, "")
}

func TestOverviewOfLargeFleet(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPod(t, api.Options{Authenticate: nameAndRole})
	p.exec(`insert into trapeze.pods (id, name, slots, lease_until, closed_at)
		select gen_random_uuid(), 'pod-' || n, 8, now(), case when n > 299 then now() end from generate_series(1, 400) n`)
	pgtest.Wait(t, "all open pods are counted", func() bool {
		// The test's pod closes pods whose leases have expired or are more than twice as long as its own lease.
		p.exec(`update trapeze.pods set lease_until = now() + interval '10 seconds', closed_at = null, closed = null where name like 'pod-%' and substr(name, 5)::int < 300`)
		_, page := p.raw(p.url, "X-Name", "bob", "X-Role", "operator")
		return strings.Contains(page, "<dt>Pods alive</dt><dd>300</dd>") && strings.Contains(page, " of 2,396 slots") // 299 pods with 8 slots each, and one with 4
	})
	_, page := p.raw(p.url+"pods", "X-Name", "bob", "X-Role", "operator")
	is.Equal(strings.Count(page, `<tr id="`), 300) // a large fleet's page shows no closed pods
}
