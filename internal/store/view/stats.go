package view

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

// StatsBy selects how [StatsRows.By] groups rows.
type StatsBy string

// These are the possible groupings.
const (
	ByLane StatsBy = "lane"
	ByKind StatsBy = "kind"
)

// StatsFilter selects the statistics that [ReadStats] reads.
type StatsFilter struct {
	Window     time.Duration // length of a period in StatsWindows
	Lane, Kind string        // only this lane or kind; empty means all
}

// StatsWindow is a period that [ReadStats] can read, with the length of its intervals.
type StatsWindow struct {
	Name          string
	Length, Every time.Duration
}

// StatsWindows lists the available periods. In all periods but the first, intervals are whole hours, because older rows are aggregated by
// hour.
var StatsWindows = []StatsWindow{
	{"1h", time.Hour, time.Minute}, {"24h", 24 * time.Hour, time.Hour}, {"7d", 7 * 24 * time.Hour, 3 * time.Hour}, {"30d", 30 * 24 * time.Hour, 12 * time.Hour},
}

// Window returns the period with the given name. An empty name means the last hour.
func Window(name string) (StatsWindow, error) {
	for _, w := range StatsWindows {
		if w.Name == name || name == "" {
			return w, nil
		}
	}
	return StatsWindow{}, fmt.Errorf("window %q: want 1h, 24h, 7d or 30d", name)
}

// statsSQL reads the rows in a period, newest first. It omits minutes that have not begun, which exist if the database's clock was ahead.
// Plan: stats_by_time backwards, to the start of the period, stops at the limit.
const statsSQL = `
select s.at, s.lane, s.kind, s.state, s.jobs, s.wait, s.run from trapeze.stats s
where s.at >= $1 and s.at <= $5 and ($2::text is null or s.lane = $2) and ($3::text is null or s.kind = $3) order by s.at desc limit $4`

// statsRead is the maximum number of rows that ReadStats reads. Reading 100,000 rows takes about half a second.
const statsRead = 100_000

// StatsRows holds the rows of a period. [StatsRows.By] aggregates them.
type StatsRows struct {
	in   job.Stats // the period
	rows []telemetry.MinuteRow
}

// ReadStats reads the statistics of jobs that ended in a period, from all pods.
func ReadStats(ctx context.Context, s *store.Store, f StatsFilter) (StatsRows, error) {
	window := slices.IndexFunc(StatsWindows, func(w StatsWindow) bool { return w.Length == f.Window })
	if window < 0 {
		return StatsRows{}, fmt.Errorf("%w: no numbers for a period of %s", job.ErrInvalid, f.Window)
	}
	now, err := Now(ctx, s)
	if err != nil {
		return StatsRows{}, err
	}
	in := job.Stats{Window: job.Seconds(f.Window), Every: job.Seconds(StatsWindows[window].Every), At: now}
	in.Since = now.Add(-f.Window).Truncate(in.Every.Duration())
	rows, err := store.Rows(ctx, s, scanStats, statsSQL, now.Add(-f.Window), store.Some(f.Lane), store.Some(f.Kind), statsRead, now)
	if err != nil {
		return StatsRows{}, fmt.Errorf("read the numbers of ended jobs: %w", err)
	}
	if len(rows) == statsRead {
		in.ReadSince = &rows[statsRead-1].At
	}
	return StatsRows{in, rows}, nil
}

// scanStats scans a row. pgx decodes a FlatArray without reflection, which makes reading several times faster.
func scanStats(row pgx.CollectableRow) (r telemetry.MinuteRow, err error) {
	var wait, run pgtype.FlatArray[int64]
	err = row.Scan(&r.At, &r.Lane, &r.Kind, &r.State, &r.Jobs, &wait, &run)
	r.Wait, r.Run = telemetry.TimeBuckets(wait), telemetry.TimeBuckets(run)
	return r, err
}

// mostGroups limits the lanes or kinds that [StatsRows.By] lists. Clients choose the names of kinds, and each group takes 6 KB.
const mostGroups = 200

// By aggregates the rows, in total and for each lane or kind. All but the 200 with the most jobs are combined as "(other)".
func (r StatsRows) By(by StatsBy) job.Stats {
	nameOf := func(row telemetry.MinuteRow) string {
		if by == ByLane {
			return row.Lane
		}
		return row.Kind
	}
	jobs := map[string]int64{}
	for _, row := range r.rows {
		jobs[nameOf(row)] += row.Jobs
	}
	names := slices.SortedFunc(maps.Keys(jobs), func(x, y string) int { return cmp.Or(cmp.Compare(jobs[y], jobs[x]), cmp.Compare(x, y)) })
	made, total, groups := r.in, newGroup("", r.in), map[string]*group{}
	for i, name := range names {
		switch {
		case i < mostGroups:
			groups[name] = newGroup(name, r.in)
		case i == mostGroups && groups[telemetry.OtherKinds] == nil:
			groups[telemetry.OtherKinds] = newGroup(telemetry.OtherKinds, r.in)
		}
	}
	for _, row := range r.rows {
		one := groups[nameOf(row)]
		if one == nil {
			one = groups[telemetry.OtherKinds]
		}
		one.add(row, r.in)
		total.add(row, r.in)
	}
	made.Total, made.Of = total.result(true), []job.StatsOf{}
	for _, g := range groups {
		made.Of = append(made.Of, g.result(false))
	}
	slices.SortFunc(made.Of, func(x, y job.StatsOf) int {
		return cmp.Or(cmp.Compare(y.Finished, x.Finished), cmp.Compare(x.Name, y.Name))
	})
	return made
}

// group accumulates the rows for one lane, one kind or the total.
type group struct {
	job.StatsOf
	waits, runs []telemetry.TimeBuckets // by interval
}

func newGroup(name string, in job.Stats) *group {
	n := int(in.At.Sub(in.Since)/in.Every.Duration()) + 1
	g := &group{StatsOf: job.StatsOf{Name: name, Intervals: make([]job.StatsInterval, n)}, waits: make([]telemetry.TimeBuckets, n), runs: make([]telemetry.TimeBuckets, n)}
	for i := range g.Intervals {
		g.Intervals[i].At = in.Since.Add(time.Duration(i) * in.Every.Duration())
	}
	return g
}

func (g *group) add(row telemetry.MinuteRow, in job.Stats) {
	i := int(row.At.Sub(in.Since) / in.Every.Duration())
	g.waits[i].Add(row.Wait)
	g.runs[i].Add(row.Run)
	g.Finished += row.Jobs
	g.Intervals[i].Finished += row.Jobs
	switch row.State {
	case job.Succeeded:
		g.Succeeded += row.Jobs
	case job.Failed:
		g.Failed += row.Jobs
		g.Intervals[i].Failed += row.Jobs
	case job.Cancelled:
		g.Cancelled += row.Jobs
	}
}

// result returns the statistics with quantiles. If each is true, every interval also includes quantiles.
func (g *group) result(each bool) job.StatsOf {
	var wait, run telemetry.TimeBuckets
	for i := range g.Intervals {
		wait.Add(g.waits[i])
		run.Add(g.runs[i])
		if each {
			g.Intervals[i].WaitP95, g.Intervals[i].RunP95 = quantile(g.waits[i], 0.95), quantile(g.runs[i], 0.95)
		}
	}
	g.WaitP50, g.WaitP95 = quantile(wait, 0.5), quantile(wait, 0.95)
	g.RunP50, g.RunP95 = quantile(run, 0.5), quantile(run, 0.95)
	return g.StatsOf
}

func quantile(h telemetry.TimeBuckets, share float64) *job.Seconds {
	d, known := h.Quantile(share)
	if !known {
		return nil
	}
	s := job.Seconds(d.Round(10 * time.Microsecond))
	return &s
}
