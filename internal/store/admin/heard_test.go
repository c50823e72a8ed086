package admin

import (
	"testing"

	"github.com/matryer/is"
)

// A pod has applied a command once two heartbeats have begun after the command. The next poll sees the results.
func TestAPodHasHeardAfterTwoHeartbeatsAndALook(t *testing.T) {
	is := is.New(t)
	h := Heard{}
	took := func(a, b string) bool { return h.Took(map[string]string{"a": a, "b": b}) == 0 }
	is.True(!took("1", "1"))
	is.True(!took("2", "2")) // this heartbeat may have begun before the command
	is.True(!took("3", "2")) // the reply may still be in flight
	is.True(!took("4", "3"))
	is.True(took("4", "4")) // a has applied the command now; b had applied it by the previous poll
	is.Equal(h.Took(map[string]string{"a": "5"}), 0)
	is.Equal(h.Took(map[string]string{"a": "5", "c": "1"}), 1) // c is a new pod
}
