package runner

import (
	"testing"

	"github.com/matryer/is"
)

// A pod has heard of a command when two heartbeats began after it at the latest, and has taken in what they told by the next look.
func TestAPodHasHeardAfterTwoHeartbeatsAndALook(t *testing.T) {
	is := is.New(t)
	h := podLeases{}
	took := func(a, b string) bool { return h.took(map[string]string{"a": a, "b": b}) }
	is.True(!took("1", "1"))
	is.True(!took("2", "2")) // it may have begun before the command
	is.True(!took("3", "2")) // the answer may be on its way
	is.True(!took("4", "3"))
	is.True(took("4", "4")) // a has, and b had by the look before
	is.True(h.took(map[string]string{"a": "5"}))
	is.True(!h.took(map[string]string{"a": "5", "c": "1"})) // one that has just come
}
