package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"
	"golang.org/x/net/html"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// addNumbers inserts statistics for several recent minutes, for one hour of the previous day, and for a minute tomorrow, as after
// the database's clock was ahead.
func addNumbers(t *testing.T, r *runner.Runner) {
	t.Helper()
	_, err := inside.Of(r).Store.Pool().Exec(t.Context(), `
		insert into trapeze.stats (at, lane, kind, state, pod, jobs, wait, run)
		select date_trunc('minute', now()) - ago * interval '1 minute', lane, kind, state, case when ago < 100 then gen_random_uuid() end, jobs, wait, run
		from (values (3, 'default', 'mail', 'succeeded', 1200, array[0, 1200], array[0, 0, 0, 0, 0, 0, 0, 1200]),
			(3, 'default', 'mail', 'failed', 3, array[0, 3], array[0, 0, 0, 0, 0, 0, 0, 3]),
			(5, 'slow', 'report', 'succeeded', 7, array[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7], array[7]),
			(5, 'slow', '<b>kind</b>', 'cancelled', 1, '{}', '{}'),
			(1200, 'slow', 'report', 'failed', 90, '{}', '{}'),
			(-1440, 'default', 'mail', 'failed', 1000, '{}', '{}')) v(ago, lane, kind, state, jobs, wait, run)`)
	if err != nil {
		t.Fatal(err)
	}
}

func TestJobStatsByLaneKind(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{Authenticate: authenticateAs("vera", "viewer")})
	addNumbers(t, h.Runner)
	read := func(query string) (s job.Stats) {
		t.Helper()
		a := h.send("GET", "/stats"+query, "")
		is.Equal(a.status, http.StatusOK)
		is.NoErr(json.Unmarshal([]byte(a.text), &s))
		return s
	}
	s := read("")
	is.Equal([]any{s.Window.Duration(), s.Every.Duration(), len(s.Total.Intervals)}, []any{time.Hour, time.Minute, 61})
	is.Equal([]int64{s.Total.Finished, s.Total.Succeeded, s.Total.Failed, s.Total.Cancelled}, []int64{1211, 1207, 3, 1})
	is.Equal([]string{s.Of[0].Name, s.Of[1].Name, s.Of[2].Name}, []string{"mail", "report", "<b>kind</b>"})
	is.True(s.Of[0].RunP50.Duration() > 800*time.Microsecond && s.Of[0].RunP50.Duration() < 1200*time.Microsecond)
	is.True(s.Of[1].WaitP95.Duration() > 800*time.Millisecond)
	is.Equal(s.Of[2].RunP50, nil) // no handler has returned
	day := read("?window=24h&by=lane")
	is.Equal([]any{day.Of[0].Name, day.Of[1].Name, day.Of[1].Failed, day.Every.Duration()}, []any{"default", "slow", int64(90), time.Hour})
	is.Equal(read("?window=7d&kind=report").Total.Failed, int64(90))
	is.Equal(read("?window=30d&lane=default").Total.Finished, int64(1203))
	for query, message := range map[string]string{
		"window=2h": `window "2h": want 1h, 24h, 7d or 30d`, "by=pod": `by "pod": want lane or kind`, "since=1h": `unknown query parameter "since"`,
	} {
		refused := h.send("GET", "/stats?"+query, "")
		is.Equal(refused.status, http.StatusBadRequest)
		is.Equal(refused.body["message"], message)
	}
}

func TestJobStatsForSubmitter(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{Authenticate: authenticateAs("sam", "submitter")})
	is.Equal(h.send("GET", "/stats", "").status, http.StatusForbidden)
}

// links returns the targets of all links with the given text on a page.
func links(page *html.Node, text string) (list []string) {
	for n := range page.Descendants() {
		if n.Type == html.ElementNode && n.Data == "a" && n.FirstChild != nil && n.FirstChild.Data == text {
			list = append(list, attribute(n, "href"))
		}
	}
	return list
}

func TestNowPageLastHour(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPod(t, api.Options{InsecureAllowAll: true})
	_, page := p.get(p.url)
	is.True(strings.Contains(visibleText(page), "Each pod adds its numbers once a minute. A pod that crashes loses those of its last minute."))
	addNumbers(t, p.Runner)
	_, page = p.get(p.url, "X-Fresh", "1") // forces a fresh read instead of sharing the first request's
	mustBeHarmless(t, p.url, page)
	text := visibleText(page)
	for _, want := range []string{"Ended jobs", "1,211", "1 cancelled", "mail", "report", "<b>kind</b>"} {
		is.True(strings.Contains(text, want)) // the page shows the number or name
	}
	is.Equal(links(page, "3"), []string{"./jobs?state=failed&since=1h", "./jobs?state=failed&lane=default&since=1h", "./jobs?state=failed&kind=mail&since=1h"})
	is.Equal(links(page, "24h"), []string{"./now?window=24h"})
	rows := 0
	for n := range page.Descendants() {
		if n.Data == "tr" && attribute(n, "data-at") != "" {
			if rows++; attribute(n, "data-finished") == "1203" {
				is.Equal(attribute(n, "data-failed"), "3")
				is.True(strings.HasPrefix(attribute(n, "data-run"), "0.00")) // a millisecond
			}
		}
	}
	is.Equal(rows, 61) // the chart's values as a table, for readers without JavaScript

	_, page = p.get(p.url + "?window=24h")
	is.True(strings.Contains(visibleText(page), "1,301"))
	is.Equal(links(page, "93"), []string{"./jobs?state=failed&since=24h"})
	response, _ := p.get(p.url + "?window=2h")
	is.Equal(response.StatusCode, http.StatusBadRequest)
}

func TestNowPageUnreadableStats(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := newPod(t, api.Options{InsecureAllowAll: true})
	p.exec(`alter table trapeze.stats rename to elsewhere`)
	response, page := p.get(p.url)
	is.Equal(response.StatusCode, http.StatusInternalServerError)
	is.True(strings.Contains(visibleText(page), "Now")) // the navigation is still there
	p.exec(`alter table trapeze.elsewhere rename to stats`)
	response, _ = p.get(p.url)
	is.Equal(response.StatusCode, http.StatusOK)
}
