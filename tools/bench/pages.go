package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/runner"
)

// pagesStatsSQL inserts statistics for 30 days. They are hourly sums over all pods, except for the last two hours, which have a row per
// minute.
const pagesStatsSQL = `
insert into trapeze.stats (at, lane, kind, state, pod, jobs, wait, run)
select at, 'default', 'kind.' || k, state, pod, 60, array_fill(3, array[20]), array_fill(3, array[20])
from (
	select at, null::uuid as pod from generate_series(date_trunc('hour', now()) - interval '30 days', now() - interval '2 hours', interval '1 hour') at
	union all
	select at, '00000000-0000-4000-8000-000000000001' from generate_series(date_trunc('hour', now()) - interval '1 hour', now(), interval '1 minute') at
) t, generate_series(0, 19) k, unnest(array['succeeded', 'failed']) state`

// pages measures every dashboard page with ten million finished jobs in the database. No data is cached between requests, so each request
// reads everything again.
func (b *lab) pages(ctx context.Context) (l line, err error) {
	const requests = 20
	perDay := b.size(10_000_000) / historyDays
	l = line{What: fmt.Sprintf("pages of the dashboard with %d days of %d finished jobs each, 10,000 waiting jobs and 30 days of numbers, median of %d requests",
		historyDays, perDay, requests),
		Goal: "every page ≤ 150 ms"}
	g, err := b.rig(ctx, keepAll)
	if err != nil {
		return l, err
	}
	defer g.close()
	h := newHistory(g, perDay, b.printf)
	if err := h.fill(ctx); err != nil {
		return l, fmt.Errorf("fill: %w", err)
	}
	if _, err := g.pool.Exec(ctx, pagesStatsSQL); err != nil {
		return l, err
	}
	runner.Handle(g.r, func(context.Context, *runner.Job[noop]) (*runner.Outcome, error) { return nil, nil })
	if _, err := g.r.EnqueueMany(ctx, copies(noop{}, 10_000), runner.Delay(time.Hour)); err != nil {
		return l, err
	}
	g.start(ctx)
	if err := g.tidy(ctx); err != nil {
		return l, err
	}
	var failed, chain, plain int64
	err = g.pool.QueryRow(ctx, `select max(d.id) filter (where d.state = 'failed'), max(j.pipeline_id) filter (where j.step = 2), max(d.id)
		from trapeze.done d join trapeze.jobs j using (id) where d.id > (select max(id) - 10000 from trapeze.done)`).Scan(&failed, &chain, &plain)
	if err != nil {
		return l, err
	}
	web := api.Handler(g.r, api.Options{InsecureAllowAll: true})
	found, err := view.Failures(ctx, inside.Of(g.r).Store, time.Now().AddDate(0, 0, -7), "")
	if err != nil || len(found.Groups) == 0 {
		return l, fmt.Errorf("%d groups of failures: %w", len(found.Groups), err)
	}
	for _, path := range []string{
		"/", "/?window=30d", "/jobs", "/jobs?state=failed", "/jobs?state=succeeded", "/jobs?kind=kind.7", "/jobs?search=" + fmt.Sprint(plain), "/jobs?search=args.rows%3D77777", "/jobs?search=such", "/jobs?search=nowhere&since=all",
		fmt.Sprint("/jobs/", failed), fmt.Sprint("/jobs/", plain), fmt.Sprint("/jobs/", chain, "/children"), "/pipelines", fmt.Sprint("/pipelines/", chain),
		"/failures", "/failures?since=168h", "/failures/" + found.Groups[0].ID + "?since=168h", "/kinds", "/kinds?window=30d", "/lanes", "/pods", "/schedules", "/audit", "/settings", "/settings/doctor", "/settings/roles",
	} {
		took := make([]float64, requests)
		for i := range took {
			request := httptest.NewRequestWithContext(ctx, http.MethodGet, "/ui"+path, nil)
			request.Header.Set("X-Fresh", "1")
			response := httptest.NewRecorder()
			began := time.Now()
			web.ServeHTTP(response, request)
			took[i] = ms(time.Since(began))
			if response.Code != http.StatusOK {
				return l, fmt.Errorf("%s: status %d: %.300s", path, response.Code, response.Body)
			}
		}
		slices.Sort(took)
		l.set(path+" ms", median(took))
	}
	return l, nil
}
