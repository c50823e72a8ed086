package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/store"
)

// A heartbeat's response may miss a job that was parked while the heartbeat was in flight.
func TestJobParkedDuringHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var d dueTimes
		now := time.Now()
		d.parked(time.Second)
		d.ApplyBeat(store.Beat{Now: now})
		is.Equal(d.NextDue(), now.Add(time.Second)) // the response reports no job
		later, sooner := now.Add(time.Minute), now.Add(time.Millisecond)
		d.ApplyBeat(store.Beat{Now: now, NextDue: &later})
		is.Equal(d.NextDue(), now.Add(time.Second))
		d.ApplyBeat(store.Beat{Now: now, NextDue: &sooner})
		is.Equal(d.NextDue(), sooner)
		time.Sleep(time.Millisecond)
		promote, recover := d.take()
		is.True(promote && !recover)
		is.True(d.NextDue().IsZero())
	})
}

// After an error, promotion and recovery are each repeated on their own.
func TestFailedSweepRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var d dueTimes
		d.sweepAgain(true, false, time.Second)
		promote, recover := d.take()
		is.True(!promote && !recover) // not yet
		time.Sleep(time.Second)
		promote, recover = d.take()
		is.True(promote && !recover)
		d.sweepAgain(false, true, time.Second)
		time.Sleep(time.Second)
		promote, recover = d.take()
		is.True(!promote && recover)
	})
}

// A statement whose reply was lost may commit later, so one search for orphaned claims is not enough.
func TestRepeatedSearchesAfterLostReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var u unknownOutcomes
		is.True(!u.Due())
		u.Raise()
		searches := 0
		for range 10 * 60 {
			if u.Due() {
				searches++
				u.checked(time.Now())
			}
			time.Sleep(time.Second)
		}
		is.True(searches >= 5 && searches < 12)
		is.True(u.raised.IsZero()) // the searches end
		began := time.Now()
		time.Sleep(time.Millisecond)
		u.Raise()
		u.checked(began) // this search began before the reply was lost
		time.Sleep(time.Second)
		is.True(u.Due())
	})
}
