package runner

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

func TestAPulseEndsWhoeverGivesNoSignOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var stale time.Time
		p := newPulse(time.Minute, func() { stale = time.Now() })
		for range 100 {
			time.Sleep(59 * time.Second)
			p.beat()
		}
		last := time.Now()
		time.Sleep(time.Hour)
		synctest.Wait()
		is.Equal(stale.Sub(last), time.Minute) // so long after the latest sign, however often the timer went off before
	})
}

func TestAPulseThatHasEndedEndsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPulse(time.Minute, func() { t.Error("stale after its end") })
		time.Sleep(59 * time.Second)
		p.end()
		time.Sleep(time.Hour)
	})
}

func TestWhatIsOffHasNoPulse(t *testing.T) {
	is := is.New(t)
	p := newPulse(0, nil)
	is.True(p == nil) // no timer, nothing to stop
	p.beat()
	p.end()
}
