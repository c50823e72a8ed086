package app

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// followEvery is the polling interval for a followed job.
const followEvery = 100 * time.Millisecond

// explainEvery is the interval at which follow asks why a job is waiting.
const explainEvery = time.Second

// waitsFor returns a one-line description of why a job is not running.
func waitsFor(ctx context.Context, at *cli.Client, j job.Job) string {
	var why []string
	for _, b := range readBlockers(ctx, at, j.ID, j.State) {
		if b.Why != job.BlockerDue {
			why = append(why, b.Says)
		}
	}
	return text.Printable(strings.Join(why, "; "))
}

// follow waits until a job and its next steps have ended, and returns the last of them. It keeps polling during a database outage.
func follow(ctx context.Context, at *cli.Client, id int64, show *progressLine) (job.Job, error) {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	var looked time.Time
	waits := ""
	for {
		j, err := readJob(ctx, at, id)
		switch {
		case err == nil:
			if now := time.Now(); now.Sub(looked) >= explainEvery || j.State == job.Running || j.State.Terminal() {
				looked, waits = now, waitsFor(ctx, at, j)
			}
			show.job(j, waits)
		case !cli.MayBeTemporary(err) && ctx.Err() == nil:
			return job.Job{}, err
		}
		if err == nil && j.State.Terminal() {
			next, err := nextStep(ctx, at, j)
			switch {
			case err == nil && next == nil:
				return j, nil
			case err == nil:
				id = next.ID
				continue
			case !cli.MayBeTemporary(err) && ctx.Err() == nil:
				return job.Job{}, err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			show.endLine()
			return job.Job{}, cli.Unknown("interrupted: job %d continues; see trapeze job %d", id, id)
		}
	}
}

// nextStep returns the step after a job, or nil if there is none. The next step exists as soon as the job has succeeded.
func nextStep(ctx context.Context, at *cli.Client, j job.Job) (*job.Job, error) {
	if j.State != job.Succeeded {
		return nil, nil
	}
	page, err := cli.Get[struct {
		Jobs []job.Job `json:"jobs"`
	}](ctx, at, "/jobs", cli.QueryOf("pipeline", strconv.FormatInt(j.PipelineID, 10), "parent", strconv.FormatInt(j.ID, 10), "limit", "1"))
	if err != nil || len(page.Jobs) == 0 {
		return nil, err
	}
	next := &page.Jobs[0]
	if (next.GroupID == nil) != (j.GroupID == nil) || j.GroupID != nil && *next.GroupID != *j.GroupID {
		return nil, nil // a child of a fan-out without a join
	}
	return next, nil
}

// progressLine shows a job's progress. On a terminal, it redraws one line; elsewhere, it prints one line per change.
type progressLine struct {
	to    io.Writer // nil means no output
	bar   bool
	last  string
	began time.Time
}

func newProgressLine(to io.Writer, silent bool) *progressLine {
	f := &progressLine{to: to, began: time.Now()}
	if silent {
		f.to = nil
	}
	f.bar = cli.IsTerminal(to)
	return f
}

// job shows a job's state, followed by the reason for waiting unless waits is empty.
func (f *progressLine) job(j job.Job, waits string) {
	if f.to == nil {
		return
	}
	line := fmt.Sprintf("job %d %s %s", j.ID, text.Printable(j.Kind), j.State)
	if waits != "" {
		line += ": " + waits
	}
	if f.bar {
		fmt.Fprintf(f.to, "\r\x1b[K%s %s %s", line, drawBar(j), time.Since(f.began).Truncate(100*time.Millisecond))
		if j.State.Terminal() {
			fmt.Fprintln(f.to)
		}
		return
	}
	if p := cli.Progress(j.Progress); p != "" {
		line += " " + text.Printable(p)
	}
	if line != f.last {
		f.last = line
		fmt.Fprintln(f.to, line)
	}
}

// endLine ends the line that is being redrawn.
func (f *progressLine) endLine() {
	if f.to != nil && f.bar {
		fmt.Fprintln(f.to)
	}
}

// drawBar returns a progress bar for a job, or plain text if the job reports no total.
func drawBar(j job.Job) string {
	const width = 30
	p := j.Progress
	if p == nil || p.Done == nil || p.Total == nil || *p.Total <= 0 {
		return text.Printable(cli.Progress(p))
	}
	full := int(max(0, min(*p.Done, *p.Total)) * width / *p.Total)
	return fmt.Sprintf("[%s%s] %s", strings.Repeat("█", full), strings.Repeat("░", width-full), text.Printable(cli.Progress(p)))
}
