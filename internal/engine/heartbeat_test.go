package engine

import (
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/store"
)

// While the engine is answering requests, each heartbeat's list replaces the one that waits. Otherwise, an empty list could keep an operator's
// request waiting until a later heartbeat.
func TestRequestsDuringSlowAnswer(t *testing.T) {
	is := is.New(t)
	e := Engine{asked: make(chan []store.ClaimRequest, 1)}
	e.ask(nil)
	e.ask([]store.ClaimRequest{{ID: 1}})
	e.ask([]store.ClaimRequest{{ID: 1}, {ID: 2}})
	is.Equal(<-e.asked, []store.ClaimRequest{{ID: 1}, {ID: 2}})
	is.Equal(len(e.asked), 0)
}
