package ui

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// kindList holds the data for the page that lists kinds.
type kindList struct {
	Window storeview.StatsWindow
	Order  string
	Kinds  []job.KindUse
	Total  int // the number of all kinds, including those that the page omits
	Ended  job.Stats
}

// mostKindsListed is the maximum number of kinds that the page lists.
const mostKindsListed = 200

// kindColumn is a column by which the page can be sorted.
type kindColumn struct {
	Order, Name string
}

// Columns lists the columns by which the page can be sorted.
func (kindList) Columns() []kindColumn {
	return []kindColumn{{"finished", "Finished"}, {"failed", "Failed"}, {"run_p50", "Run p50"}, {"run_p95", "Run p95"}, {"wait_p50", "Wait p50"},
		{"wait_p95", "Wait p95"}, {"running", "Running"}, {"waiting", "Waiting"}}
}

// Link returns the URL of the page with the given period and order.
func (kindList) Link(window, order string) string {
	return "kinds?" + url.Values{"window": {window}, "order": {order}}.Encode()
}

// Windows lists the periods that the page can show.
func (kindList) Windows() []storeview.StatsWindow { return storeview.StatsWindows }

// Since returns the length of the period in the form that the failure pages accept.
func (l kindList) Since() string { return fmt.Sprintf("%dh", int(l.Window.Length.Hours())) }

// PerMinute returns the average number of a kind's jobs that finished per minute.
func (l kindList) PerMinute(k job.KindUse) float64 {
	return float64(k.Ended.Finished) / l.Ended.At.Sub(l.Ended.Since).Minutes()
}

// rate formats a number of jobs per minute.
func rate(perMinute float64) string {
	if perMinute < 1 {
		return fmt.Sprintf("%.1f/h", perMinute*60)
	}
	return fmt.Sprintf("%.1f/min", perMinute)
}

// showKinds lists the kinds, slowest first by default.
func showKinds(rd *reader, p *page, r *http.Request) error {
	window, err := storeview.Window(r.URL.Query().Get("window"))
	if err != nil {
		return invalid(err)
	}
	l := kindList{Window: window, Order: r.URL.Query().Get("order")}
	if l.Order == "" {
		l.Order = storeview.KindOrders[0]
	}
	found, err := rd.byKind[l.Window.Name].get(r.Context(), fresh(r), func(ctx context.Context) (k kindsRead, err error) {
		k.kinds, k.ended, err = storeview.Kinds(ctx, rd.o.Store, l.Window.Length)
		return k, err
	})
	if err != nil {
		return err
	}
	l.Kinds, l.Total, l.Ended = slices.Clone(found.kinds), len(found.kinds), found.ended
	if err := storeview.SortKinds(l.Kinds, l.Order); err != nil {
		return err
	}
	l.Kinds = l.Kinds[:min(len(l.Kinds), mostKindsListed)]
	p.Title, p.Live, p.Data = "Kinds", "events/stream", l
	return nil
}
