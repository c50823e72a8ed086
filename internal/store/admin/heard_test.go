package admin

import (
	"testing"

	"github.com/matryer/is"
)

// A pod has applied a command once two of its heartbeats have begun after the command. The next poll sees the command's results.
func TestCommandAppliedAfterTwoHeartbeats(t *testing.T) {
	is := is.New(t)
	h := Heard{}
	confirmed := func(a, b string) bool { return h.Record(map[string]string{"a": a, "b": b}) == 0 }
	is.True(!confirmed("1", "1"))
	is.True(!confirmed("2", "2")) // this heartbeat may have begun before the command
	is.True(!confirmed("3", "2")) // the reply may still be in flight
	is.True(!confirmed("4", "3"))
	is.True(confirmed("4", "4")) // both pods had applied the command by the previous poll
	is.Equal(h.Record(map[string]string{"a": "5"}), 0)
	is.Equal(h.Record(map[string]string{"a": "5", "c": "1"}), 1) // c is a new pod
}
