package slots

import (
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
)

// While other pods wait for slots in a lane, a pod that holds more than its share starts no jobs there. It returns each slot that becomes
// free.
func TestAPodGivesBackWhatIsAboveItsShareWhileOthersWait(t *testing.T) {
	t.Parallel()
	four := 4
	l := NewLanes(10, time.Minute, nil)
	lane := store.Lane{Name: "shared", Enabled: true, Slots: &four}
	l.Apply(store.Beat{Lanes: []store.Lane{lane}})
	now, still := time.Now(), func() bool { return true }
	asks, _ := l.Asks(true, now)
	l.Settle(asks, []store.Slots{{Lane: "shared", Held: 4, Share: 4}}, now, still)
	for range 4 {
		if !l.Reserve("shared") {
			t.Fatal("the lane has four slots, all granted to this pod")
		}
	}
	lane.Held, lane.Wanted = 4, true // another pod is waiting
	l.Apply(store.Beat{Lanes: []store.Lane{lane}})
	asks, _ = l.Asks(true, now)
	l.Settle(asks, []store.Slots{{Lane: "shared", Held: 4, Share: 2, Want: true}}, now, still)
	l.Release("shared", 1) // a job has finished
	if l.Reserve("shared") {
		t.Error("a pod above its share started a job, while another pod waits")
	}
	if !l.Overdue("shared") {
		t.Error("Overdue does not report that the free slot must be returned")
	}
	asks, _ = l.Asks(false, now)
	if len(asks) != 1 || asks[0].Target != 3 || asks[0].Used != 3 {
		t.Error("the free slot is not returned:", asks)
	}
}
