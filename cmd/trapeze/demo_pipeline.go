package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// demoYear is the year whose factors apply.
const demoYear = 2024

// demoSteps are the steps of the pipeline, with what they count.
var demoSteps = []struct{ kind, unit string }{
	{"csv_ingest", "rows"}, {"factor_sync", "factors"}, {"emission_recalc", "flights"}, {"unit_totals", "airports"},
}

// look is how often the demo reads where the pipeline is.
const look = 25 * time.Millisecond

// showPipeline runs the pipeline in this process.
func (d *demo) showPipeline(ctx context.Context) error {
	d.say("")
	d.say("1. The pipeline. A step that ends hands over to the next one, in the same")
	d.say("   commit and the same process. The hand-off includes that commit.")
	d.say("")
	clock := stopwatch{ran: map[string]span{}}
	r, stop, err := d.startPod(ctx, handlers.Options{Schema: d.co2, OnRun: clock.note})
	if err != nil {
		return err
	}
	defer stop()
	submitted := time.Now()
	id, err := r.Enqueue(ctx, handlers.Ingest{File: d.file, Year: demoYear}, runner.Subject(fmt.Sprintf("travel/%d", demoYear)))
	if err != nil {
		return err
	}
	steps, err := d.follow(ctx, r.Store(), id, &clock, submitted)
	if err != nil {
		return err
	}
	took := time.Since(submitted)
	d.report.Steps = clock.steps(submitted)
	if err := d.readResult(ctx, steps); err != nil {
		return err
	}
	d.tellResult(steps[0], took)
	return nil
}

// startPod runs a pod with the pipeline in this process until stop.
func (d *demo) startPod(ctx context.Context, o handlers.Options) (r *runner.Runner, stop func(), err error) {
	if r, err = runner.New(d.pool, d.runnerOptions("demo")); err != nil {
		return nil, nil, err
	}
	if err := handlers.Register(r, d.pool, o); err != nil {
		r.Close()
		return nil, nil, err
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- r.Run(running) }()
	stop = func() {
		r.HandBackNow()
		cancel()
		<-ended
		r.Close()
	}
	for ready := false; !ready; ready, _ = r.Ready() {
		select {
		case err := <-ended:
			cancel()
			r.Close()
			return nil, nil, err
		case <-ctx.Done():
			stop()
			return nil, nil, ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
	return r, stop, nil
}

// follow shows a pipeline's progress until it has ended, and returns its jobs in order.
func (d *demo) follow(ctx context.Context, st *store.Store, id int64, clock *stopwatch, submitted time.Time) ([]job.Job, error) {
	defer d.clear()
	bars := map[string]*bar{}
	ended := map[int64]bool{}
	for {
		steps, over, err := pipelineOf(ctx, st, id)
		if err != nil {
			return nil, err
		}
		for _, j := range steps {
			b := bars[j.Kind]
			if b == nil {
				b = d.bar(j.Kind, unitOf(j.Kind))
				bars[j.Kind] = b
			}
			if p := j.Progress; p != nil && p.Done != nil && p.Total != nil {
				b.set(*p.Done, *p.Total)
			}
			if j.State == job.Succeeded && !ended[j.ID] {
				ended[j.ID] = true
				b.end(clock.words(j.Kind, submitted))
			}
		}
		if over {
			return steps, failure(steps)
		}
		if err := sleep(ctx, look); err != nil {
			return nil, err
		}
	}
}

// pipelineOf reads the jobs of a pipeline in order, and whether all is over.
func pipelineOf(ctx context.Context, st *store.Store, id int64) ([]job.Job, bool, error) {
	page, err := st.Jobs(ctx, store.Filter{Pipeline: id})
	if err != nil {
		return nil, false, err
	}
	steps := page.Jobs
	slices.SortFunc(steps, func(a, b job.Job) int { return a.Step - b.Step })
	// A step is there from the commit on that ended the one before: all ended means over.
	over := len(steps) > 0 && !slices.ContainsFunc(steps, func(j job.Job) bool { return !j.State.Terminal() })
	return steps, over, nil
}

// failure is the error of a pipeline that did not succeed.
func failure(steps []job.Job) error {
	last := steps[len(steps)-1]
	if last.State == job.Succeeded {
		return nil
	}
	return refused("%s %s: %s", last.Kind, last.State, text(last.Error))
}

func unitOf(kind string) string {
	for _, s := range demoSteps {
		if s.kind == kind {
			return s.unit
		}
	}
	return ""
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// span is when a handler ran.
type span struct{ began, ended time.Time }

// stopwatch notes when each step ran, by this process's clock.
type stopwatch struct {
	mu  sync.Mutex
	ran map[string]span
}

func (s *stopwatch) note(kind string, began, ended time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ran[kind] = span{began, ended}
}

// steps are the steps that ran, in order.
func (s *stopwatch) steps(submitted time.Time) (list []demoStep) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := submitted
	for _, step := range demoSteps {
		ran, ok := s.ran[step.kind]
		if !ok {
			break
		}
		list = append(list, demoStep{step.kind, millis(ran.ended.Sub(ran.began)), millis(ran.began.Sub(before))})
		before = ran.ended
	}
	return list
}

// words tells how long a step took and how it got its turn.
func (s *stopwatch) words(kind string, submitted time.Time) string {
	for i, step := range s.steps(submitted) {
		switch {
		case step.Kind != kind:
		case i == 0:
			return fmt.Sprintf("%6.0f ms", step.MS)
		default:
			return fmt.Sprintf("%6.0f ms, hand-off %.1f ms", step.MS, step.HandoffMS)
		}
	}
	return ""
}

// millis is a duration in milliseconds, to the microsecond.
func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// readResult takes the numbers from what the steps returned.
func (d *demo) readResult(ctx context.Context, steps []job.Job) error {
	var (
		ingested     handlers.Ingested
		recalculated handlers.Recalculated
		total        handlers.Totalled
	)
	for i, v := range []any{&ingested, &handlers.SyncedFactors{}, &recalculated, &total} {
		if err := json.Unmarshal(steps[i].Result, v); err != nil {
			return fmt.Errorf("read the result of %s: %w", steps[i].Kind, err)
		}
	}
	d.report.Rows, d.report.Units, d.report.Total = ingested.Rows, total.Units, total.KgCO2e
	d.report.Warnings = ingested.Bad + recalculated.NoFactor
	var err error
	d.totals, err = handlers.ReadTotals(ctx, d.pool, handlers.Options{Schema: d.co2}, demoYear)
	return err
}

// tellResult shows the largest units and the sum.
func (d *demo) tellResult(first job.Job, took time.Duration) {
	most := d.totals[:min(len(d.totals), 10)]
	d.say("")
	d.say("The %d largest of %s airports of departure:", len(most), thousands(d.report.Units))
	d.say("")
	for _, u := range most {
		name := text(u.Name)
		if name == "" {
			name = "(not in the list of airports)"
		}
		d.say("  %-4s %-30s %7s flights %13s kg CO2e", u.Unit, short(printable(name), 30), thousands(u.Flights), commas(rounded(u.KgCO2e)))
	}
	d.say("")
	d.say("The sum of all: %s kg CO2e from %s flights in %.2f s.", commas(d.report.Total.String()), thousands(d.report.Rows), took.Seconds())
	if d.report.Warnings == 0 {
		return
	}
	var bad struct {
		BadRows []struct {
			Line   int64
			Reason string
		} `json:"bad_rows"`
	}
	_ = json.Unmarshal(first.Result, &bad) // it was read before
	d.say("Warnings: %s (rows passed by, or flights whose distance has no factor).", thousands(d.report.Warnings))
	for _, row := range bad.BadRows[:min(len(bad.BadRows), 5)] {
		d.say("  line %d: %s", row.Line, printable(row.Reason))
	}
}

// rounded cuts an exact decimal to one digit after the point, half up.
func rounded(digits string) string {
	exact, ok := new(big.Rat).SetString(digits)
	if !ok {
		return digits
	}
	return exact.FloatString(1)
}
