package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// growthSide is one of the two databases being compared, with a running pod.
type growthSide struct {
	g      *rig
	starts chan time.Time
	ended  chan struct{}
	web    http.Handler
	boot   string // the boot ID of a pod that only sends heartbeats and polls
	peer   *rig   // the pod that runs the drain, or nil
	seen   map[string][]float64
	order  []string
}

func newGrowthSide(ctx context.Context, g *rig) (*growthSide, error) {
	s := &growthSide{g: g, starts: make(chan time.Time, 8), ended: make(chan struct{}, 1), seen: map[string][]float64{}}
	if err := g.pool.QueryRow(ctx, `select gen_random_uuid()::text`).Scan(&s.boot); err != nil {
		return nil, err
	}
	runner.Handle(g.r, func(_ context.Context, j *runner.Job[step]) (*runner.Outcome, error) {
		s.starts <- time.Now()
		if j.Args.Left == 0 {
			s.ended <- struct{}{}
			return nil, nil
		}
		return runner.Then(step{Left: j.Args.Left - 1}), nil
	})
	e := echo.New()
	api.Mount(e.Group(""), g.r, api.Options{InsecureAllowAll: true})
	s.web = e
	g.start(ctx)
	return s, inside.Of(g.r).Store.Register(ctx, store.PodInfo{Boot: s.boot, Name: "prober", Kinds: []string{"none"}, Slots: 1}, time.Hour)
}

func (s *growthSide) close() {
	if s.peer != nil {
		s.peer.close()
	}
}

func (s *growthSide) note(name string, value float64) {
	if _, known := s.seen[name]; !known {
		s.order = append(s.order, name)
	}
	s.seen[name] = append(s.seen[name], value)
}

// round runs each measurement once: it drains n jobs, runs the given number of chains one at a time, and repeats each read ten times.
func (s *growthSide) round(ctx context.Context, n, chains int) error {
	if err := s.drain(ctx, n); err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	if err := s.chains(ctx, chains); err != nil {
		return fmt.Errorf("chains: %w", err)
	}
	return s.reads(ctx)
}

// drain measures how fast a separate pod drains a backlog.
func (s *growthSide) drain(ctx context.Context, n int) error {
	r, err := runner.New(s.g.pool, growthKeeps)
	if err != nil {
		return err
	}
	s.peer = &rig{pool: s.g.pool, r: r, url: s.g.url, end: []func(){r.Close}}
	runner.Handle(r, func(context.Context, *runner.Job[noop]) (*runner.Outcome, error) { return nil, nil })
	at := time.Now()
	if _, err := r.EnqueueMany(ctx, copies(noop{}, n)); err != nil {
		return err
	}
	s.note("bulk submission µs a job", float64(time.Since(at).Microseconds())/float64(n))
	at = time.Now()
	s.peer.start(ctx)
	if err := s.g.drained(ctx); err != nil {
		return err
	}
	s.note("claim and finish µs a job", float64(time.Since(at).Microseconds())/float64(n))
	s.peer.close()
	s.peer = nil
	return nil
}

// chains measures n chains of five steps, which run one at a time on the idle pod.
func (s *growthSide) chains(ctx context.Context, n int) error {
	var gaps, first, called []float64
	for range n {
		at := time.Now()
		if _, err := s.g.r.Enqueue(ctx, step{Left: 4}); err != nil {
			return err
		}
		called = append(called, ms(time.Since(at)))
		select {
		case <-s.ended:
		case <-ctx.Done():
			return ctx.Err()
		}
		for i := range 5 {
			began := <-s.starts
			if i == 0 {
				first = append(first, ms(began.Sub(at)))
			} else {
				gaps = append(gaps, ms(began.Sub(at)))
			}
			at = began
		}
	}
	s.note("hand-off gap ms", median(gaps))
	s.note("submission ms", median(called))
	s.note("submission to start ms", median(first))
	return nil
}

// reads measures the queries that an idle pod sends, and those that users of the dashboard and the API send.
func (s *growthSide) reads(ctx context.Context) error {
	st := inside.Of(s.g.r).Store
	page, err := view.Jobs(ctx, st, job.Filter{})
	if err != nil {
		return err
	}
	list := func(f job.Filter) func() error {
		return func() error { _, err := view.Jobs(ctx, st, f); return err }
	}
	pipelines := func(statuses ...job.Status) func() error {
		return func() error {
			_, err := view.Pipelines(ctx, st, view.PipelineFilter{Statuses: statuses})
			return err
		}
	}
	for _, read := range []struct {
		name string
		do   func() error
	}{
		{"heartbeat ms", func() error { _, err := st.Heartbeat(ctx, s.boot, time.Hour, false); return err }},
		{"poll that finds nothing ms", func() error {
			_, err := st.Claim(ctx, s.boot, []store.Want{{Lane: "default", N: 100}}, []string{"none"}, true)
			return err
		}},
		{"page Now ms", func() error { return s.get(ctx, "/ui/") }},
		{"newest jobs ms", list(job.Filter{})},
		{"second page ms", list(job.Filter{Cursor: page.Cursor})},
		{"failed jobs ms", list(job.Filter{States: []job.State{job.Failed}})},
		{"failed jobs of a kind ms", list(job.Filter{States: []job.State{job.Failed}, Kind: "kind.2"})},
		{"newest pipelines ms", pipelines()},
		{"failed pipelines ms", pipelines(job.PipelineFailed)},
	} {
		var took []float64
		for range 10 {
			at := time.Now()
			if err := read.do(); err != nil {
				return fmt.Errorf("%s: %w", read.name, err)
			}
			took = append(took, ms(time.Since(at)))
		}
		slices.Sort(took)
		s.note(read.name, quantile(took, 0.5))
	}
	return nil
}

// get requests a page and bypasses the cache, as the dashboard does after a change.
func (s *growthSide) get(ctx context.Context, path string) error {
	request := httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	request.Header.Set("X-Fresh", "1")
	answer := httptest.NewRecorder()
	s.web.ServeHTTP(answer, request)
	if answer.Code != http.StatusOK {
		return fmt.Errorf("%s: status %d: %.200s", path, answer.Code, answer.Body)
	}
	return nil
}
