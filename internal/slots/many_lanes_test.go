package slots

import (
	"fmt"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/store"
)

// A pod with three free slots does not take the slots of all lanes, and does not request any in lanes without jobs.
func TestAPodRequestsItsFirstSlotsOnlyInLanesWithJobsAndOnlyAsManyAsItCanUse(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	l := NewLanes(3, time.Minute, nil)
	b := store.Beat{}
	two := 2
	for i := range 50 {
		b.Lanes = append(b.Lanes, store.Lane{Name: fmt.Sprint("tenant-", i), Enabled: true, Slots: &two})
	}
	l.Apply(b)
	now := time.Now()
	still := func() bool { return true }
	all, _ := l.Asks(false, now)
	is.Equal(len(all), 50)
	waiting := map[string]bool{}
	for i := range 10 {
		waiting[fmt.Sprint("tenant-", i)] = true
	}
	kept := l.Withdraw(all, waiting, 3, now)
	is.Equal(len(kept), 3)
	var answers []store.Slots
	for _, ask := range kept {
		is.True(waiting[ask.Lane])
		answers = append(answers, store.Slots{Lane: ask.Lane, Held: 1, Share: 1, Work: true})
	}
	l.Settle(kept, answers, now, still)
	asks, later := l.Asks(false, now)
	is.Equal(len(asks), 7) // the other lanes with jobs
	is.True(later > 0)     // the rest is requested again soon
	l.Settle(asks, nil, now, still)
	held := kept[0].Lane
	asks, _ = l.Asks(false, now)
	is.Equal(len(asks), 0)
	l.Hear([]string{held, "unknown"})
	asks, _ = l.Asks(false, now)
	is.Equal(len(asks), 1) // only the lane whose slots have changed
	is.Equal(asks[0].Lane, held)
	is.True(!asks[0].Empty)
	is.Equal(len(l.Withdraw(asks, nil, 0, now)), 1) // a lane in which it holds slots is always settled
}
