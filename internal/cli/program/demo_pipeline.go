package program

import (
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// demoYear is the year of the emission factors.
const demoYear = 2024

// demoSteps lists the pipeline's steps. Each has a unit of progress and a description of how it is started. The recalculation step consists
// of many jobs; the factor sync waits for them and reports their combined progress.
var demoSteps = []demoStepKind{
	{"csv_ingest", "rows", ""}, {fanOutKind, "", "hand-off"}, {childKind, "airports", "fan-out"}, {"unit_totals", "airports", "join"},
}

type demoStepKind struct{ kind, unit, reached string }

// fanOutKind is the kind that fans out into jobs of childKind.
const fanOutKind, childKind = "factor_sync", "emission_recalc"

// pollInterval is the interval at which the demo polls the pipeline.
const pollInterval = 25 * time.Millisecond

// showPipeline runs the pipeline in this process.
func (d *demo) showPipeline(ctx context.Context) error {
	d.say("")
	d.say("1. The pipeline. A step that ends starts the next one in the same")
	d.say("   commit and the same process; the time of a hand-off includes that commit.")
	d.say("   The factor sync fans out into one recalculation per airport, and waits")
	d.say("   for them without a slot; the totals join them.")
	d.say("")
	clock := stopwatch{ran: map[string]span{}}
	r, stop, err := d.startPod(ctx, handlers.Options{Schema: d.co2, OnRun: clock.note})
	if err != nil {
		return err
	}
	defer stop()
	submitted := time.Now()
	made, err := r.Enqueue(ctx, handlers.Ingest{File: d.file, Year: demoYear}, runner.Subject(fmt.Sprintf("travel/%d", demoYear)))
	if err != nil {
		return err
	}
	d.shown = append(d.shown, made.ID)
	steps, err := d.follow(ctx, r, made.ID, &clock, submitted)
	if err != nil {
		return err
	}
	took := time.Since(submitted)
	d.report.Steps = clock.steps(submitted)
	if err := d.readResult(ctx, steps); err != nil {
		return err
	}
	d.printResult(took)
	return nil
}

// startPod runs a pod with the pipeline in this process until stop is called.
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
		r.StopNow()
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

// follow shows a pipeline's progress until the pipeline has ended, and returns its jobs in order.
func (d *demo) follow(ctx context.Context, r *runner.Runner, id int64, clock *stopwatch, submitted time.Time) ([]job.JobRow, error) {
	defer d.clear()
	bars := map[string]*bar{}
	ended := map[string]bool{}
	for {
		steps, over, err := spineOf(ctx, inside.Of(r).Store, id)
		if err != nil {
			return nil, err
		}
		for _, part := range partsOf(steps) {
			b := bars[part.kind]
			if b == nil {
				b = d.bar(part.kind, unitOf(part.kind))
				bars[part.kind] = b
			}
			if p := part.progress; p != nil && p.Done != nil && p.Total != nil {
				b.set(*p.Done, *p.Total)
			}
			if part.ended && !ended[part.kind] {
				ended[part.kind] = true
				b.end(clock.words(part.kind, submitted))
			}
		}
		if over {
			return steps, failure(ctx, r, steps)
		}
		if err := wait(ctx, pollInterval); err != nil {
			return nil, err
		}
	}
}

// part is a section of a pipeline with a separate progress bar.
type part struct {
	kind     string
	progress *job.Progress
	ended    bool
}

// partsOf returns, in order, the parts of a pipeline that have begun. All recalculations form one part, whose progress and completion are
// taken from the factor sync. The factor sync reports no other progress.
func partsOf(spine []job.JobRow) (list []part) {
	for _, j := range spine {
		if j.Kind == fanOutKind && j.Progress != nil {
			list = append(list, part{j.Kind, nil, true}, part{childKind, j.Progress, j.State.Terminal()})
			continue
		}
		list = append(list, part{j.Kind, j.Progress, j.State == job.Succeeded})
	}
	return list
}

// spineOf returns a pipeline's jobs in order, except its fan-out children, and whether the pipeline has ended. The commit that finishes a step
// also inserts the next one, so the pipeline has ended if its last job has.
func spineOf(ctx context.Context, st *store.Store, id int64) (steps []job.JobRow, over bool, err error) {
	steps, err = view.Spine(ctx, st, id)
	return steps, len(steps) > 0 && steps[len(steps)-1].State.Terminal(), err
}

// failure returns a failed pipeline's error. Partial success does not count as a failure.
func failure(ctx context.Context, r *runner.Runner, steps []job.JobRow) error {
	last := steps[len(steps)-1]
	if last.State == job.Succeeded {
		return nil
	}
	if last.Kind == fanOutKind && last.Reason != nil && *last.Reason == job.ReasonChildrenFailed {
		for b, err := range r.Branches(ctx, last.ID) {
			if err == nil && b.State != job.Succeeded {
				return cli.Refused("%s %s: %s, the first is %s: %s", last.Kind, last.State, cli.Text(last.Error), b.Subject, b.Error)
			}
		}
	}
	return cli.Refused("%s %s: %s", last.Kind, last.State, cli.Text(last.Error))
}

// unitOf returns the unit of progress for a kind.
func unitOf(kind string) string { return demoStepOf(kind).unit }

// transitionTo describes how the previous step starts a step of a kind.
func transitionTo(kind string) string { return demoStepOf(kind).reached }

func demoStepOf(kind string) (found demoStepKind) {
	for _, s := range demoSteps {
		if s.kind == kind {
			return s
		}
	}
	return found
}

// span is the time during which a handler ran. If several jobs of a kind ran, it lasts from the first start to the last end.
type span struct{ began, ended time.Time }

// stopwatch records when each step ran, by this process's clock.
type stopwatch struct {
	mu  sync.Mutex
	ran map[string]span
}

func (s *stopwatch) note(kind string, began, ended time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if before, again := s.ran[kind]; again {
		if before.began.Before(began) {
			began = before.began
		}
		if before.ended.After(ended) {
			ended = before.ended
		}
	}
	s.ran[kind] = span{began, ended}
}

// steps returns the steps that ran, in order.
func (s *stopwatch) steps(submitted time.Time) (list []demoStep) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := submitted
	for _, step := range demoSteps {
		ran, ok := s.ran[step.kind]
		if !ok {
			continue
		}
		list = append(list, demoStep{step.kind, millis(ran.ended.Sub(ran.began)), millis(ran.began.Sub(before))})
		before = ran.ended
	}
	return list
}

// words describes how long a step took and how it was started.
func (s *stopwatch) words(kind string, submitted time.Time) string {
	for i, step := range s.steps(submitted) {
		switch {
		case step.Kind != kind:
		case i == 0:
			return fmt.Sprintf("%6.0f ms", step.MS)
		default:
			return fmt.Sprintf("%6.0f ms, %s %.1f ms", step.MS, transitionTo(kind), step.HandoffMS)
		}
	}
	return ""
}

// millis converts a duration to milliseconds, with microsecond resolution.
func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// readResult reads the figures from the steps' results.
func (d *demo) readResult(ctx context.Context, steps []job.JobRow) error {
	ingested, total, err := resultsOf(steps)
	if err != nil {
		return err
	}
	d.ingested, d.total = ingested, total
	d.report.Rows, d.report.Units, d.report.Total = ingested.Rows, total.Units, total.KgCO2e
	d.report.Warnings, d.report.BadUnits = ingested.Bad+total.NoFactor, total.BadUnits
	d.totals, err = handlers.ReadTotals(ctx, d.pool, handlers.Options{Schema: d.co2}, demoYear)
	return err
}

// resultsOf decodes the results of the first and last steps of a finished pipeline.
func resultsOf(steps []job.JobRow) (first handlers.Ingested, last handlers.Totalled, err error) {
	if err := json.Unmarshal(steps[0].Result, &first); err != nil {
		return first, last, fmt.Errorf("read the result of %s: %w", steps[0].Kind, err)
	}
	if err := json.Unmarshal(steps[len(steps)-1].Result, &last); err != nil {
		return first, last, fmt.Errorf("read the result of the pipeline: %w", err)
	}
	return first, last, nil
}

// printResult prints the largest units and the total.
func (d *demo) printResult(took time.Duration) {
	most := d.totals[:min(len(d.totals), 10)]
	d.say("")
	d.say("The %d largest of %s departure airports:", len(most), thousands(d.report.Units))
	d.say("")
	for _, u := range most {
		name := cli.Text(u.Name)
		if name == "" {
			name = "(not in the list of airports)"
		}
		d.say("  %-4s %-30s %7s flights %13s kg CO2e", u.Unit, text.Short(text.Printable(name), 30), thousands(u.Flights), commas(roundDecimal(u.KgCO2e)))
	}
	d.say("")
	d.say("Total: %s kg CO2e from %s flights in %.2f s.", commas(d.report.Total.String()), thousands(d.total.Flights), took.Seconds())
	d.printBadUnits()
	if d.report.Warnings == 0 {
		return
	}
	d.say("Warnings: %s (skipped rows, or flights whose distance has no factor).", thousands(d.report.Warnings))
	for _, row := range d.ingested.BadRows[:min(len(d.ingested.BadRows), 5)] {
		d.say("  line %d: %s", row.Line, text.Printable(row.Reason))
	}
}

// printBadUnits prints the units that were left out.
func (d *demo) printBadUnits() {
	if d.total.Bad == 0 {
		return
	}
	d.say("The pipeline is partial: %s airports could not be recalculated and are left out.", thousands(d.total.Bad))
	for _, u := range d.report.BadUnits[:min(len(d.report.BadUnits), 10)] {
		d.say("  %-4s %s", text.Printable(u.Unit), text.Printable(u.Reason))
	}
}

// roundDecimal rounds an exact decimal number to one decimal place, half up.
func roundDecimal(digits string) string {
	exact, ok := new(big.Rat).SetString(digits)
	if !ok {
		return digits
	}
	return exact.FloatString(1)
}
