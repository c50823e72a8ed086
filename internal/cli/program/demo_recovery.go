package program

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

const (
	// ingestFor is the approximate duration of the ingest, which is slowed down so that the user can watch it and the demo can kill its pod
	// halfway through.
	ingestFor = 3 * time.Second
	// recoveryWithin limits the duration of the second run. A takeover takes only slightly longer than the lease.
	recoveryWithin = 2 * time.Minute
	// podsWithin limits how long two pods may take to start.
	podsWithin = 30 * time.Second
)

// recoveryRun is the second run of the pipeline. It uses two pods, one of which is killed.
type recoveryRun struct {
	*demo
	watcher     *runner.Runner // submits and reads jobs but never runs them
	pods        []*podProcess
	shownEvents map[string]bool // events that are already in the timeline
	zero        time.Time       // the submission time; all times come from the database
	holder      *podProcess     // the pod that has claimed the ingest
	victim      *podProcess     // the pod that was killed
	killed      time.Time
	taken       time.Time // when another pod claimed the victim's job
}

// showRecovery runs the pipeline on two pods in separate processes, and kills the pod that is running the ingest.
func (d *demo) showRecovery(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, recoveryWithin, fmt.Errorf("no takeover within %s", recoveryWithin))
	defer cancel()
	d.say("")
	d.say("2. Recovery. The same with two pods in separate processes, and the ingest")
	d.say("   slowed down to %.0f s. The pod that runs it is killed midway, without a", ingestFor.Seconds())
	d.say("   signal to the other: its lease of 8 s expires, and the other takes over.")
	d.say("")
	watcher, err := runner.New(d.pool, d.runnerOptions("demo"))
	if err != nil {
		return err
	}
	defer watcher.Close()
	n := &recoveryRun{demo: d, watcher: watcher, shownEvents: map[string]bool{}}
	defer func() {
		d.clear()
		for _, p := range n.pods {
			p.leave()
		}
	}()
	if err := n.startPods(ctx); err != nil {
		return err
	}
	made, err := watcher.Enqueue(ctx, handlers.Ingest{File: d.file, Year: demoYear}, runner.AllowUnregistered(), runner.Subject(fmt.Sprintf("travel/%d", demoYear)))
	if err != nil {
		return err
	}
	d.shown = append(d.shown, made.ID)
	if err := inside.Of(watcher).Store.Notify(ctx, d.pool); err != nil {
		return err
	}
	steps, err := n.watch(ctx, made.ID)
	if err != nil {
		return err
	}
	d.clear()
	return n.compare(ctx, steps)
}

// startPods starts two pods and waits until both have registered.
func (n *recoveryRun) startPods(ctx context.Context) error {
	rows := n.report.Rows + n.report.Warnings
	batch := min(max(rows/20, 1), 1000)
	settings := podSettings{
		Version: n.config.Options.Version, DatabaseURL: n.config.DatabaseURL, DirectURL: n.config.Options.DirectURL, Schema: n.config.Options.Schema, CO2: n.co2Recovery(),
		BatchRows: int(batch), BatchPause: ingestFor / time.Duration(max((rows+batch-1)/batch, 1)),
	}
	for _, settings.Name = range []string{"pod-a", "pod-b"} {
		p, err := startPodProcess(settings)
		if err != nil {
			return err
		}
		n.pods = append(n.pods, p)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, podsWithin, fmt.Errorf("the pods have not started within %s", podsWithin))
	defer cancel()
	for {
		pods, err := view.Pods(ctx, inside.Of(n.watcher).Store, false)
		if err != nil {
			return err
		}
		up := func(p *podProcess) bool {
			return slices.ContainsFunc(pods, func(q job.Pod) bool { return q.Name == p.name })
		}
		for _, p := range n.pods {
			if !p.alive() {
				return cli.Unavailable("%s ended before it was ready: see its output above", p.name)
			}
		}
		if up(n.pods[0]) && up(n.pods[1]) {
			return nil
		}
		if err := wait(ctx, pollInterval); err != nil {
			return context.Cause(ctx)
		}
	}
}

// watch prints the timeline and kills the pod that is running the ingest. It returns the jobs when the pipeline has ended.
func (n *recoveryRun) watch(ctx context.Context, id int64) ([]job.JobRow, error) {
	var ingest, fan *bar
	for {
		// Read the jobs before the events, so that the events include the completion of every finished job.
		steps, over, err := spineOf(ctx, inside.Of(n.watcher).Store, id)
		if err != nil {
			return nil, err
		}
		if err := n.extend(ctx, steps); err != nil {
			return nil, err
		}
		first := steps[0]
		if ingest == nil {
			ingest = n.bar(first.Kind, unitOf(first.Kind))
		}
		if p := first.Progress; p != nil && p.Done != nil && p.Total != nil {
			if n.live {
				ingest.set(*p.Done, *p.Total)
			}
			if n.victim == nil && n.holder != nil && first.State == job.Running && *p.Done*5 >= *p.Total*2 {
				if err := n.killHolder(ctx, *p.Done, *p.Total); err != nil {
					return nil, err
				}
			}
		}
		if err := n.remarkOn(ctx, ingest, first); err != nil {
			return nil, err
		}
		fan = n.showFan(fan, steps)
		if over {
			return steps, failure(ctx, n.watcher, steps)
		}
		for _, p := range n.pods {
			if p != n.victim && !p.alive() {
				return nil, cli.Unavailable("%s ended unexpectedly: see its output above", p.name)
			}
		}
		if err := wait(ctx, pollInterval); err != nil {
			return nil, context.Cause(ctx)
		}
	}
}

// showFan shows how many recalculations have finished across all pods.
func (n *recoveryRun) showFan(b *bar, steps []job.JobRow) *bar {
	for _, part := range partsOf(steps) {
		switch {
		case part.kind != childKind || !n.live:
		case part.ended:
			if b != nil {
				b.remove()
			}
		default:
			if b == nil {
				b = n.bar(childKind, unitOf(childKind))
			}
			b.set(*part.progress.Done, *part.progress.Total)
		}
	}
	return b
}

// killHolder kills the pod that is running the ingest.
func (n *recoveryRun) killHolder(ctx context.Context, done, total int64) error {
	n.victim = n.holder
	n.victim.kill()
	if err := n.pool.QueryRow(ctx, `select clock_timestamp()`).Scan(&n.killed); err != nil {
		return err
	}
	n.line(n.killed, "kill -9 %s (process %d) after %s of %s rows", n.victim.name, n.victim.cmd.Process.Pid, thousands(done), thousands(total))
	return nil
}

// remarkOn shows a remark next to the bar: the name of the working pod, or the reason why the pipeline is waiting.
func (n *recoveryRun) remarkOn(ctx context.Context, b *bar, first job.JobRow) error {
	switch {
	case !n.live:
	case first.State.Terminal():
		b.remove()
	case n.victim != nil && n.taken.IsZero():
		pods, err := view.Pods(ctx, inside.Of(n.watcher).Store, false)
		if err != nil {
			return err
		}
		for _, p := range pods {
			if p.Name == n.victim.name {
				b.remark(fmt.Sprintf("the lease ends in %.1f s", max(0, time.Until(p.LeaseUntil).Seconds())))
			}
		}
	case n.holder != nil:
		b.remark("on " + n.holder.name)
	}
	return nil
}

// line adds a line to the timeline.
func (n *recoveryRun) line(at time.Time, format string, args ...any) {
	n.say("  %5.1f s  %s", max(0, at.Sub(n.zero).Seconds()), fmt.Sprintf(format, args...))
}

// extend adds new events from the pipeline's main jobs to the timeline. It rereads each job's entire history, because the histories are
// short.
func (n *recoveryRun) extend(ctx context.Context, steps []job.JobRow) error {
	const all = 1000
	for _, j := range steps {
		events, err := n.watcher.Admin("").Events(ctx, j.ID, 0, all)
		if err != nil {
			return err
		}
		for _, e := range events {
			if !n.shownEvents[e.Cursor] {
				n.shownEvents[e.Cursor] = true
				n.printEvent(e, j)
			}
		}
	}
	return nil
}

func (n *recoveryRun) printEvent(e job.Event, j job.JobRow) {
	pod := cli.Text(e.Pod)
	switch {
	case e.Event == "job.waiting":
		n.line(e.At, "%s fans out into one recalculation per airport", pod)
	case e.Event == "job.succeeded" && j.Kind == fanOutKind:
		n.line(e.At, "the last airport has been recalculated")
	case e.Event == "job.succeeded":
		n.line(e.At, "%s ends %s", pod, j.Kind)
	case j.Step > 0:
	case e.Event == "job.enqueued":
		n.zero = e.At
		n.line(e.At, "submitted")
	case e.Event == "job.recovered":
		name := "a pod"
		if n.holder != nil {
			name = n.holder.name
		}
		n.line(e.At, "the lease of %s has expired: its job is pending again", name)
	case e.Event == "job.claimed":
		again := n.victim != nil
		for _, p := range n.pods {
			if p.name == pod {
				n.holder = p
			}
		}
		if !again {
			n.line(e.At, "%s runs csv_ingest", pod)
			return
		}
		n.taken = e.At
		n.line(e.At, "%s takes over from the last checkpoint: %.1f s after the kill", pod, e.At.Sub(n.killed).Seconds())
	}
}

// compare compares the two runs' results.
func (n *recoveryRun) compare(ctx context.Context, steps []job.JobRow) error {
	n.say("")
	if n.victim == nil {
		n.say("The file is too small to kill a pod during its ingest.")
		return nil
	}
	n.report.Takeover = float64(n.taken.Sub(n.killed).Milliseconds()) / 1000
	totals, err := handlers.ReadTotals(ctx, n.pool, handlers.Options{Schema: n.co2Recovery()}, demoYear)
	if err != nil {
		return err
	}
	ingested, total, err := resultsOf(steps)
	if err != nil {
		return err
	}
	if ingested.Rows != n.report.Rows || total.KgCO2e != n.report.Total || !reflect.DeepEqual(totals, n.totals) {
		return cli.Refused("the result is %s kg from %d rows with the takeover, and %s kg from %d without it: this is a bug, please report it",
			total.KgCO2e, ingested.Rows, n.report.Total, n.report.Rows)
	}
	n.say("The result: %s kg CO2e from %s flights.", commas(total.KgCO2e.String()), thousands(total.Flights))
	n.say("No row was lost or duplicated, and the result is identical.")
	return nil
}
