package store_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/upkeep"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

const podA, podB = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"

// counted returns a row for one minute in which n jobs waited for 1 ms to 3 ms and ran for the given time.
func counted(at time.Time, podID, lane, kind string, state job.State, n int64, run time.Duration) telemetry.MinuteRow {
	row := telemetry.MinuteRow{At: at.UTC().Truncate(time.Minute), Lane: lane, Kind: kind, State: state, PodID: &podID, Jobs: n, Wait: telemetry.TimeBuckets{}, Run: telemetry.TimeBuckets{}}
	for i := range n {
		row.Wait.Observe(time.Millisecond + time.Duration(i%3)*time.Millisecond)
		row.Run.Observe(run)
	}
	return row
}

func (w *world) addStats(rows ...telemetry.MinuteRow) {
	w.t.Helper()
	w.is.Helper()
	w.is.NoErr(upkeep.AddStats(w.ctx(), w.Store, rows))
}

func (w *world) stats(window time.Duration, by view.StatsBy) job.Stats {
	w.t.Helper()
	w.is.Helper()
	rows, err := view.ReadStats(w.ctx(), w.Store, view.StatsFilter{Window: window})
	w.is.NoErr(err)
	return rows.By(by)
}

func noPace(ctx context.Context) error { return ctx.Err() }

func (w *world) sumStats() int {
	w.t.Helper()
	w.is.Helper()
	n, err := upkeep.SumStats(w.ctx(), w.Store, time.Hour, noPace)
	w.is.NoErr(err)
	return n
}

func TestStatsOfTwoPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	now := time.Now()
	w.addStats(
		counted(now.Add(-3*time.Minute), podA, "default", "mail", job.Succeeded, 90, 10*time.Millisecond),
		counted(now.Add(-3*time.Minute), podB, "default", "mail", job.Failed, 10, time.Second),
		counted(now.Add(-9*time.Minute), podB, "slow", "report", job.Succeeded, 5, time.Minute),
		counted(now.Add(-9*time.Minute), podB, "slow", "mail", job.Cancelled, 1, -1),
		counted(now.Add(-70*time.Minute), podA, "default", "mail", job.Succeeded, 7, time.Second), // outside the last hour
	)
	s := w.stats(time.Hour, view.ByKind)
	w.is.Equal([]int64{s.Total.Finished, s.Total.Succeeded, s.Total.Failed, s.Total.Cancelled}, []int64{106, 95, 10, 1})
	w.is.Equal(len(s.Of), 2)
	mail := s.Of[0]
	w.is.Equal([]any{mail.Name, mail.Finished, mail.Failed}, []any{"mail", int64(101), int64(10)})
	w.is.True(mail.RunP50.Duration() > 5*time.Millisecond && mail.RunP50.Duration() < 20*time.Millisecond)
	w.is.True(mail.RunP95.Duration() > 500*time.Millisecond && mail.RunP95.Duration() < 2*time.Second)
	w.is.True(mail.WaitP95.Duration() > time.Millisecond && mail.WaitP95.Duration() < 6*time.Millisecond)
	var finished, failed int64
	busy := 0
	for i, interval := range s.Total.Intervals {
		w.is.Equal(interval.At, s.Since.Add(time.Duration(i)*time.Minute))
		finished, failed = finished+interval.Finished, failed+interval.Failed
		if interval.Finished > 0 {
			busy++
		}
		w.is.Equal(interval.RunP95 != nil, interval.Finished > 0)
	}
	w.is.Equal([]any{finished, failed, busy, len(s.Total.Intervals)}, []any{int64(106), int64(10), 2, 61})
	lanes := w.stats(time.Hour, view.ByLane)
	w.is.Equal([]any{lanes.Of[0].Name, lanes.Of[0].Finished, lanes.Of[1].Name, lanes.Of[1].Finished}, []any{"default", int64(100), "slow", int64(6)})
	w.is.Equal(w.stats(24*time.Hour, view.ByKind).Total.Finished, int64(113))
	only, err := view.ReadStats(w.ctx(), w.Store, view.StatsFilter{Window: time.Hour, Lane: "slow", Kind: "mail"})
	w.is.NoErr(err)
	w.is.Equal(only.By(view.ByKind).Total.Finished, int64(1))
	_, err = view.ReadStats(w.ctx(), w.Store, view.StatsFilter{Window: time.Minute})
	w.is.True(err != nil) // this period is not supported
}

func TestStatsSentTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	row := counted(time.Now(), podA, "default", "mail", job.Succeeded, 3, time.Second)
	w.addStats(row)
	w.addStats(row) // the first reply was lost, so the row is resent
	w.addStats()
	w.is.Equal(w.stats(time.Hour, view.ByKind).Total.Finished, int64(3))
}

func TestHourlyStats(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := time.Now().UTC().Truncate(time.Hour).Add(-5 * time.Hour)
	var rows []telemetry.MinuteRow
	for minute := range 120 { // two hours
		for _, podID := range []string{podA, podB} {
			at := old.Add(time.Duration(minute) * time.Minute)
			rows = append(rows, counted(at, podID, "default", "mail", job.Succeeded, int64(minute), time.Duration(minute+1)*time.Millisecond),
				counted(at, podID, "default", "mail", job.Failed, 1, -1))
		}
	}
	recent := counted(time.Now().Add(-time.Minute), podA, "default", "mail", job.Succeeded, 1, time.Second)
	w.addStats(append(rows, recent)...)
	before := w.stats(24*time.Hour, view.ByLane)
	w.is.Equal(before.Total.Finished, int64(2*119*120/2+240+1))

	sum := func() (int, error) { return upkeep.SumStats(w.ctx(), w.Store, time.Hour, noPace) }
	x, y := async(sum), async(sum) // two pods sum the rows concurrently
	a, err := x()
	w.is.NoErr(err)
	b, err := y()
	w.is.NoErr(err)
	w.is.Equal(a+b, len(rows))
	w.is.Equal(w.count(`select count(*) from trapeze.stats where pod is not null`), 1) // only the recent row still covers a single minute
	w.is.True(w.count(`select count(*) from trapeze.stats where pod is null`) <= 2*4)  // two hours with two states each, and one row from each of the two pods
	after := w.stats(24*time.Hour, view.ByLane)
	before.At, before.Since = after.At, after.Since
	for i := range before.Total.Intervals {
		before.Total.Intervals[i].At = after.Total.Intervals[i].At
		before.Of[0].Intervals[i].At = after.Of[0].Intervals[i].At
	}
	w.is.Equal(after, before) // summing by hour changes neither counts nor quantiles

	w.addStats(counted(old, podB, "late", "mail", job.Succeeded, 4, time.Second)) // a late row from a pod that had no connection to the database
	w.is.Equal(w.sumStats(), 1)
	w.is.Equal(w.stats(24*time.Hour, view.ByLane).Total.Finished, before.Total.Finished+4)
	w.is.Equal(w.sumStats(), 0)
}

func TestOldNumbersAreDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, days := range []int{1, 29, 31, 40} {
		w.addStats(counted(time.Now().AddDate(0, 0, -days), podA, "default", "mail", job.Succeeded, 1, time.Second))
	}
	w.sumStats()
	n, err := upkeep.PruneStats(w.ctx(), w.Store, 30*24*time.Hour, 1)
	w.is.NoErr(err)
	w.is.Equal(n, 1) // the limit is one row
	n, err = upkeep.PruneStats(w.ctx(), w.Store, 30*24*time.Hour, 100)
	w.is.NoErr(err)
	w.is.Equal(n, 1)
	w.is.Equal(w.count(`select count(*) from trapeze.stats where at > now() - interval '30 days'`), 2)
	w.is.Equal(w.stats(30*24*time.Hour, view.ByKind).Total.Finished, int64(2))
}

func TestStatsOfInfrequentKinds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var rows []telemetry.MinuteRow
	for i := range 300 {
		n := int64(1)
		if i < 5 {
			n = 2
		}
		rows = append(rows, counted(time.Now().Add(-time.Minute), podA, "default", fmt.Sprintf("kind%03d", i), job.Succeeded, n, time.Second))
	}
	w.addStats(rows...)
	found := w.stats(time.Hour, view.ByKind)
	w.is.Equal(found.Total.Finished, int64(305))
	w.is.Equal(len(found.Of), 201)
	w.is.Equal(found.Of[0].Name, telemetry.OtherKinds) // the list is sorted by number of jobs
	w.is.Equal(found.Of[0].Finished, int64(100))
	w.is.Equal(found.Of[1].Name, "kind000")
}
