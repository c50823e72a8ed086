package poller

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/identity"
	"github.com/trapeze-run/trapeze/internal/store"
)

// escalations is a Member and an Engine that counts the wake-ups of all pods.
type escalations struct {
	Member
	Engine
	n int
}

func (e *escalations) Escalate()          { e.n++ }
func (e *escalations) AwaitEnds()         {}
func (e *escalations) FillSlots()         {}
func (e *escalations) RunsIsolated() bool { return false }

// While the queue is paused, no pod can take the jobs that a claim leaves behind. Instead, the claim after the pause wakes all pods.
func TestEscalationAfterPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		e := &escalations{}
		i := identity.New(identity.Services{}, identity.Options{Slots: 1})
		i.HandledKinds = []string{"k"}
		p := New(i, e, e)
		beat := store.Beat{Paused: true, Lanes: []store.Lane{{Name: "default", Enabled: true}}}
		p.Lanes.Apply(beat)
		claim := func() int {
			_, err := p.claimDue(t.Context(), true)
			is.NoErr(err)
			time.Sleep(time.Second)
			synctest.Wait()
			return e.n
		}
		p.escalates.Store(true)
		is.Equal(claim(), 0)
		is.Equal(claim(), 0)
		beat.Paused = false
		p.Lanes.Apply(beat)
		is.True(p.Lanes.Reserve("default")) // another job takes the only slot
		is.Equal(claim(), 1)
		is.Equal(claim(), 1)
	})
}
