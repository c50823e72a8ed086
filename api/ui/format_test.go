package ui

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
)

func TestLengthsAndNumbersAreShort(t *testing.T) {
	is := is.New(t)
	for d, want := range map[time.Duration]string{
		0: "0ms", 999 * time.Millisecond: "999ms", 1500 * time.Millisecond: "1.5s", 59 * time.Second: "59s", 61 * time.Second: "1m 01s",
		2*time.Hour + 5*time.Minute: "2h 05m", 75 * time.Hour: "3d 3h",
	} {
		is.Equal(length(d), want)
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567"} {
		is.Equal(number(n), want)
	}
	is.Equal(upTo(10_000, 10_000), "10,000+")
	now := time.Now()
	is.Equal(ago(now, now.Add(-90*time.Second)).Text, "1m 30s ago")
	is.Equal(ago(now, now.Add(2*time.Hour)).Text, "in 2h 00m")
	is.Equal(ago(now, (*time.Time)(nil)), moment{})
}

func TestUntrustedTextFormatting(t *testing.T) {
	is := is.New(t)
	is.Equal(plain("a\u202eb\x00c\nd"), "a\ufffdb\ufffdc d")
	is.Equal(short(4, "äöüß!"), "äöü…")
	is.Equal(pretty(json.RawMessage(`{"a":[1]}`)), "{\n  \"a\": [\n    1\n  ]\n}")
	long := pretty(json.RawMessage(`"` + strings.Repeat("x", mostJSON+100) + `"`))
	is.True(len(long) < mostJSON+100 && strings.HasSuffix(long, "more bytes"))
}

func TestAttemptTimelineFromEvents(t *testing.T) {
	is := is.New(t)
	began := time.Now()
	event := func(no int, at time.Duration, from, to job.State, fence int64, name string) job.Event {
		return job.Event{EventNo: &no, At: began.Add(at), From: from, To: to, Fence: &fence, Event: name}
	}
	end := began.Add(100 * time.Second)
	h := history{JobRow: job.JobRow{State: job.Succeeded, CreatedAt: began, FinishedAt: &end}, Events: []job.Event{
		event(1, 0, "", job.Pending, 0, "job.enqueued"),
		event(2, 20*time.Second, job.Pending, job.Running, 1, "job.claimed"),
		event(3, 30*time.Second, job.Running, job.Pending, 1, "job.recovered"),
		event(4, 50*time.Second, job.Pending, job.Running, 2, "job.claimed"),
		event(5, 60*time.Second, "", "", 2, "progress"),
		event(6, 100*time.Second, job.Running, job.Succeeded, 2, "job.succeeded"),
	}}
	h.Events[1].Remote = true
	list := attemptsOf(h, began.Add(time.Hour))
	is.Equal(len(list), 2)
	is.Equal(list[0].Fence, int64(2)) // the latest attempt comes first
	is.Equal([]int64{list[0].X, list[0].W}, []int64{500, 500})
	is.Equal([]int64{list[1].X, list[1].W}, []int64{200, 100})
	is.Equal(list[1].What(), "recovered")
	is.True(list[1].Remote && !list[0].Remote)  // a remote worker ran the first attempt
	is.Equal(attemptsOf(history{}, began), nil) // the job was never claimed
}

func TestPipelineGraphColumns(t *testing.T) {
	is := is.New(t)
	one := func(id int64) job.TreeJob {
		return job.TreeJob{JobRow: job.JobRow{ID: id, Kind: "k", State: job.Succeeded}}
	}
	fanned := one(2)
	failed := job.JobRow{ID: 7, State: job.Failed}
	fanned.FanOut = &job.TreeFanOut{Branches: 1000, States: map[job.State]int{job.Succeeded: 998, job.Failed: 2}, Shown: []job.TreeJob{{JobRow: failed}, {JobRow: failed}}}
	d := draw(tree{Tree: job.Tree{Jobs: []job.TreeJob{one(1), fanned}}, Planned: []job.Step{{Kind: "join"}}}, time.Now())
	is.Equal(len(d.Boxes), 6)            // two steps, one box for all children, two failed children, and the planned join
	is.Equal(len(d.Lines), 1+3+3)        // one line to the fan-out, three to its boxes, and three to the join
	is.Equal(d.Boxes[2].X, d.Boxes[3].X) // children are drawn one below another
	is.True(d.Boxes[3].Y > d.Boxes[2].Y)
	is.True(d.Boxes[5].Planned)
	is.Equal(d.Boxes[2].Foot, "2 failed")
	is.True(d.Boxes[2].Parts[1].W > 0)       // even two children of a thousand are visible
	is.True(d.W > d.Boxes[5].X+d.Boxes[5].W) // everything fits in the drawing
	long := tree{}
	for id := range int64(500) {
		long.Jobs = append(long.Jobs, one(id+1))
	}
	for range 100 {
		long.Planned = append(long.Planned, job.Step{Kind: "later"})
	}
	d = draw(long, time.Now())
	is.Equal(len(d.Boxes), 1+mostSteps+mostPlanned+1) // one box at each end represents the omitted steps
	is.Equal(d.Boxes[0].Title, "460 earlier steps")
}
