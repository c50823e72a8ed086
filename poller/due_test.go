package poller

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
		is.Equal(d.nextDue(), now.Add(time.Second)) // the response reports no job
		later, sooner := now.Add(time.Minute), now.Add(time.Millisecond)
		d.ApplyBeat(store.Beat{Now: now, NextDue: &later})
		is.Equal(d.nextDue(), now.Add(time.Second))
		d.ApplyBeat(store.Beat{Now: now, NextDue: &sooner})
		is.Equal(d.nextDue(), sooner)
		time.Sleep(time.Millisecond)
		promote, recover := d.take()
		is.True(promote && !recover)
		is.True(d.nextDue().IsZero())
	})
}

// A notification, after which jobs may be due, must not hide the time of a job that becomes due later.
func TestJobParkedAfterNotification(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var d dueTimes
		d.parked(0)
		d.parked(time.Second)
		is.Equal(d.nextDue(), time.Now())
		promote, _ := d.take()
		is.True(promote)
		is.Equal(d.nextDue(), time.Now().Add(time.Second))
		promote, _ = d.take()
		is.True(!promote)
	})
}

// After an error, promotion and recovery are each repeated on their own.
func TestFailedPollRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var d dueTimes
		d.pollAgain(true, false, time.Second)
		promote, recover := d.take()
		is.True(!promote && !recover) // not yet
		time.Sleep(time.Second)
		promote, recover = d.take()
		is.True(promote && !recover)
		d.pollAgain(false, true, time.Second)
		time.Sleep(time.Second)
		promote, recover = d.take()
		is.True(!promote && recover)
	})
}
