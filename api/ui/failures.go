package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/failures"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
)

// These are the limits on the groups and jobs of the failure pages.
const (
	mostFailureGroups = 100
	mostFailedJobs    = 100
)

// failureList holds the data for the page that lists failure groups.
type failureList struct {
	*filters
	failures.List
	Shown []failures.Group
	Own   bool // only the visitor's own jobs were read
	Again bool // the visitor may retry the jobs that were read
}

// showFailures shows the groups of failed jobs.
func showFailures(rd *reader, p *page, r *http.Request) (err error) {
	l := failureList{filters: failureFilters(r, "failures"), Own: p.Owner(access.JobsRead) != "", Again: p.retriesFailures()}
	if l.List, err = rd.readFailures(r, p, l.Get("since")); err != nil {
		return err
	}
	if kind := l.Get("kind"); kind != "" {
		l.List = l.OfKind(kind)
	}
	l.Shown = l.Groups[:min(len(l.Groups), mostFailureGroups)]
	p.Title, p.Live, p.Data = "Failures", "events/stream", l
	return nil
}

// failureGroup holds the data for a failure group's page.
type failureGroup struct {
	failureList
	Group   failures.Group
	Members []failures.Job // the latest failures; empty if none occurred in the period
}

// showFailure shows one group of failed jobs.
func showFailure(rd *reader, p *page, r *http.Request) (err error) {
	g := failureGroup{failureList: failureList{filters: failureFilters(r, "failures/"+r.PathValue("group")), Own: p.Owner(access.JobsRead) != "", Again: p.retriesFailures()}}
	if g.List, err = rd.readFailures(r, p, g.Get("since")); err != nil {
		return err
	}
	var members []failures.Job
	g.Group, members, _ = g.Of(r.PathValue("group"))
	g.Members = members[:min(len(members), mostFailedJobs)]
	p.Title, p.Live, p.Data = "Failures", "events/stream", g
	return nil
}

// retriesFailures reports whether the visitor may retry exactly the failures that the page shows.
func (v visitor) retriesFailures() bool {
	return v.May(string(access.JobsRetry)) && v.Owner(access.JobsRead) == v.Owner(access.JobsRetry)
}

// failureFilters returns the filters of a failure page. The default period is one day.
func failureFilters(r *http.Request, path string) *filters {
	f := filtersOf(r, path)
	if f.Get("since") == "" {
		f.Values.Set("since", defaultSince)
	}
	return f
}

// readFailures reads the failures that the visitor may see.
func (rd *reader) readFailures(r *http.Request, p *page, since string) (failures.List, error) {
	from, err := parseSince(since, p.Now)
	if err != nil {
		return failures.List{}, err
	}
	owner := p.Owner(access.JobsRead)
	read := func(ctx context.Context) (failures.List, error) {
		return storeview.Failures(ctx, rd.o.Store, from, owner)
	}
	if cached := rd.failed[since]; cached != nil && owner == "" {
		return cached.get(r.Context(), fresh(r), read)
	}
	return read(r.Context())
}

// RetryGroup returns the button that retries exactly the jobs that the page shows for a group.
func (l failureList) RetryGroup(g failures.Group) many {
	raw, _ := json.Marshal(map[string]string{"failures": g.Set}) // a map of strings can always be encoded
	return many{Path: "failures/retry", Label: "Retry", Filter: string(raw), Words: short(mostWords, g.Kind) + ": " + short(mostWords, g.Error)}
}

// Most returns the maximum number of jobs that a page reads.
func (l failureList) Most() int { return storeview.MostFailures }

// GroupLink returns the URL of a group's page, for the same period.
func (l failureList) GroupLink(g failures.Group) string {
	return filters{map[string][]string{"since": {l.Get("since")}}, "failures/" + g.ID}.First()
}

// Trend returns a bar chart of the failures in each part of the period.
func (l failureList) Trend(g failures.Group) bars {
	return barsOf(g.Trend, length(l.Until.Sub(l.Since)/failures.Parts))
}

// bars is a bar chart of counts, with the newest on the right.
type bars struct {
	W, H int
	Bars []struct{ X, Y, H int }
	Says string // a description for screen readers
}

// These are the dimensions of a bar chart.
const (
	barsStep   = 5
	barsHeight = 20
)

// barsOf draws counts as bars. part describes the period that each bar covers.
func barsOf(counts []int, part string) bars {
	most := slices.Max(append([]int{1}, counts...))
	b := bars{W: len(counts) * barsStep, H: barsHeight, Says: fmt.Sprintf("At most %s in %s; the newest is the last: %s", number(most), part, strings.Trim(fmt.Sprint(counts), "[]"))}
	for i, n := range counts {
		if n > 0 {
			high := max(n*barsHeight/most, 2)
			b.Bars = append(b.Bars, struct{ X, Y, H int }{i * barsStep, barsHeight - high, high})
		}
	}
	return b
}
