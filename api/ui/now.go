package ui

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// overview holds the data for the Now page.
type overview struct {
	board
	period
	numbers
}

// period is the period that a page shows.
type period struct{ Window storeview.StatsWindow }

// Windows lists the periods that the page can show.
func (period) Windows() []storeview.StatsWindow { return storeview.StatsWindows }

// Since returns the length of the period in the form that the lists of jobs and failures accept.
func (p period) Since() string { return fmt.Sprintf("%dh", int(p.Window.Length.Hours())) }

// mostKinds is the maximum number of kinds on the Now page.
const mostKinds = 10

// TopKinds returns the kinds with the most finished jobs. Others returns the number of remaining kinds.
func (o overview) TopKinds() []job.StatsOf { return o.Stats.Of[:min(len(o.Stats.Of), mostKinds)] }
func (o overview) Others() int             { return max(len(o.Stats.Of)-mostKinds, 0) }

// OfLane returns a lane's statistics.
func (o overview) OfLane(name string) job.StatsOf {
	for _, of := range o.lanes.Of {
		if of.Name == name {
			return of
		}
	}
	return job.StatsOf{Name: name}
}

// showNow shows the overview.
func showNow(rd *reader, p *page, r *http.Request) (err error) {
	var o overview
	if o.Window, err = storeview.Window(r.URL.Query().Get("window")); err != nil {
		return invalid(err)
	}
	if o.board, err = rd.readBoard(r); err != nil {
		return err
	}
	o.Pods = slices.DeleteFunc(slices.Clone(o.Pods), func(p pod) bool { return p.ClosedAt != nil })
	o.numbers, err = rd.stats[o.Window.Name].get(r.Context(), fresh(r), func(ctx context.Context) (numbers, error) {
		rows, err := storeview.ReadStats(ctx, rd.o.Store, storeview.StatsFilter{Window: o.Window.Length})
		if err != nil {
			return numbers{}, err
		}
		return numbers{rows.By(storeview.ByKind), rows.By(storeview.ByLane)}, nil
	})
	p.Title, p.Live, p.Data = "Now", "events/stream", o
	return err
}

// showBoard shows the lanes or the pods, including pods that recently left or lapsed. Both pages use the same data.
func showBoard(title string) func(*reader, *page, *http.Request) error {
	return func(rd *reader, p *page, r *http.Request) error {
		b, err := rd.readBoard(r)
		p.Title, p.Live, p.Data = title, "events/stream", b
		return err
	}
}

// trend is a bar chart of finished jobs over a period, with the newest on the right. The lower part of each bar shows the failed jobs.
type trend struct {
	W, H             int
	Finished, Failed string // SVG paths
	Says             string // a description for screen readers
}

// trendHeight is the height of the longest bar. trendStep is the distance between bars.
const (
	trendHeight = 20
	trendStep   = 3
)

func trendOf(of job.StatsOf) trend {
	t := trend{W: len(of.Intervals) * trendStep, H: trendHeight}
	most := int64(0)
	for _, interval := range of.Intervals {
		most = max(most, interval.Finished)
	}
	if most == 0 {
		return trend{}
	}
	t.Says = fmt.Sprintf("Finished jobs over time, at most %s in an interval", number(most))
	var finished, failed strings.Builder
	for i, interval := range of.Intervals {
		drawBar(&finished, i, interval.Finished, most)
		drawBar(&failed, i, interval.Failed, most)
	}
	t.Finished, t.Failed = finished.String(), failed.String()
	return t
}

// drawBar appends a bar to a path. A bar is at least one unit high, so that even one job among thousands is visible.
func drawBar(path *strings.Builder, i int, n, most int64) {
	if n > 0 {
		high := max(int(math.Round(float64(n)/float64(most)*trendHeight)), 1)
		fmt.Fprintf(path, "M%d %dv-%dh%dv%dz", i*trendStep, trendHeight, high, trendStep-1, high)
	}
}

// timing formats a wait or run time.
func timing(d *job.Seconds) string {
	switch {
	case d == nil:
		return "–"
	case d.Duration() < time.Millisecond:
		return "<1ms"
	}
	return length(d.Duration())
}

// seconds formats a wait or run time as a number for the chart. It returns an empty string if the time is unknown.
func seconds(d *job.Seconds) string {
	if d == nil {
		return ""
	}
	return fmt.Sprintf("%g", d.Duration().Seconds())
}

// pageAddress matches the URL of a page, relative to the dashboard's root. It allows no scheme, host, leading slash or escape, and no
// segment that starts with a dot. Every match therefore stays below the root.
var pageAddress = regexp.MustCompile(`^[a-z]+(/[A-Za-z0-9][A-Za-z0-9_.:-]*)*$`)

// maxNext is the maximum length of a URL that a login redirects to, in bytes.
const maxNext = 2000

// Onward returns the URL to redirect to after a login, relative to the dashboard's root. If next is not a dashboard page, it returns an
// empty string, which means the first page.
func Onward(next string) string {
	path, query, _ := strings.Cut(next, "?")
	if len(next) > maxNext || !pageAddress.MatchString(path) || !hasPage(path) {
		return ""
	}
	asked, err := url.ParseQuery(query)
	if err != nil || len(asked) == 0 {
		return path
	}
	return path + "?" + asked.Encode()
}

// hasPage reports whether a page exists for a path.
func hasPage(path string) bool {
	segments := strings.Split(path, "/")
	return slices.ContainsFunc(routes, func(v Route) bool {
		return slices.EqualFunc(segments, strings.Split(v.Path[1:], "/"), func(segment, pattern string) bool {
			return segment == pattern || pattern[0] == '{' && pattern != "{$}"
		})
	})
}
