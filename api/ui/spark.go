package ui

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// spark is a drawing of a schedule's latest occurrences, with the newest on the right. A shape and a color show the outcome of each
// occurrence, and a bar shows the duration of its job.
type spark struct {
	W, H  int
	Marks []mark
	Says  string // a description for screen readers
}

// mark is one occurrence in a spark.
type mark struct {
	X         int // the left edge of its shape
	BarX      int
	BarY, Bar int    // the top of the bar, and its height; the height is 0 if there is no bar
	Shape     string // the name of a state, which selects the icon and color
	Says      string
}

// These are the dimensions of a spark.
const (
	sparkStep  = 12 // distance between occurrences
	sparkShape = 10 // size of a shape
	sparkBar   = 16 // height of the longest bar
	sparkMost  = 20 // maximum number of occurrences
)

// sparkOf returns a drawing of occurrences, which must be sorted newest first.
func sparkOf(occurrences []job.Fire) spark {
	occurrences = occurrences[:min(len(occurrences), sparkMost)]
	s := spark{W: len(occurrences) * sparkStep, H: sparkBar + 2 + sparkShape}
	longest, counts, order := time.Duration(0), map[string]int{}, []string{}
	for _, f := range occurrences {
		if f.Took != nil {
			longest = max(longest, f.Took.Duration())
		}
		name := becameOf(f)
		if counts[name]++; counts[name] == 1 {
			order = append(order, name)
		}
	}
	for i, f := range slices.Backward(occurrences) {
		m := mark{X: (len(occurrences) - 1 - i) * sparkStep, Shape: shapeOf(f), Says: f.FireAt.UTC().Format("2006-01-02 15:04:05 UTC") + ": " + becameOf(f)}
		m.BarX = m.X + (sparkShape-6)/2
		if f.Took != nil {
			m.Bar = height(f.Took.Duration(), longest)
			m.Says += ", " + tookOf(f.Took)
		}
		m.BarY = sparkBar - m.Bar
		s.Marks = append(s.Marks, m)
	}
	said := []string{}
	for _, name := range order {
		said = append(said, fmt.Sprintf("%d %s", counts[name], name))
	}
	if len(occurrences) == 0 {
		return s
	}
	s.Says = fmt.Sprintf("The last %d occurrences, newest at the right: %s", len(occurrences), strings.Join(said, ", "))
	if len(occurrences) == 1 {
		s.Says = "One occurrence: " + said[0][2:]
	}
	return s
}

// height returns the height of a job's bar. It grows with the logarithm of the duration, so that bars for a second and for an hour are both
// visible.
func height(took, longest time.Duration) int {
	if longest <= 0 {
		return 1
	}
	part := math.Log1p(took.Seconds()*1000) / math.Log1p(longest.Seconds()*1000)
	return min(max(int(math.Round(part*sparkBar)), 1), sparkBar)
}

// becameOf describes the outcome of an occurrence in words.
func becameOf(f job.Fire) string {
	switch f.Outcome {
	case job.FireFired:
		if f.State == "" {
			return "its job was removed by retention"
		}
		return calls(f.State)
	case job.FireDuplicate:
		return "no job: its unique key is held"
	case job.FireOverlap:
		return "skipped: the previous job is unfinished"
	case job.FireMissed:
		return "missed"
	case job.FireFailed:
		return "its job was refused"
	}
	return plain(string(f.Outcome))
}

// shapeOf returns the state whose shape and color represent an occurrence.
func shapeOf(f job.Fire) string {
	switch f.Outcome {
	case job.FireFired:
		if f.State == "" {
			return "planned"
		}
		return string(f.State)
	case job.FireMissed:
		return "warning"
	case job.FireFailed:
		return "failed"
	}
	return "cancelled"
}

// tookOf formats a duration, or returns an empty string if it is unknown.
func tookOf(d *job.Seconds) string {
	if d == nil {
		return ""
	}
	return length(max(d.Duration(), 0))
}

// late describes how late an occurrence was processed.
func late(f job.Fire) string {
	if f.Manual {
		return ""
	}
	return length(max(f.DecidedAt.Sub(f.FireAt), 0))
}
