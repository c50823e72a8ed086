package routine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

// begun returns a running watchdog, and the time at which it cancels the handler.
func begun(after time.Duration) (p *Watchdog, stale *time.Time) {
	p, stale = &Watchdog{}, &time.Time{}
	p.Start(func(error) { *stale = time.Now() }, after)
	return p, stale
}

func TestWatchdogUnresponsiveHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		p, stale := begun(time.Minute)
		for range 100 {
			time.Sleep(59 * time.Second)
			p.Touch()
		}
		last := time.Now()
		time.Sleep(time.Hour)
		synctest.Wait()
		is.Equal(stale.Sub(last), time.Minute) // a minute after the latest activity, no matter how often the timer has fired
	})
}

func TestStoppedWatchdog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		p, stale := begun(time.Minute)
		time.Sleep(59 * time.Second)
		p.Stop()
		p.Limit(time.Second)
		time.Sleep(time.Hour)
		synctest.Wait()
		is.True(stale.IsZero())
	})
}

func TestWatchdogWithoutLimit(t *testing.T) {
	is := is.New(t)
	p, _ := begun(0)
	is.True(p.timer == nil) // there is no timer to stop
	p.Touch()
	p.Stop()
}

func TestWatchdogLimitSetDuringRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		p, stale := begun(0)
		began := time.Now()
		time.Sleep(time.Hour)
		synctest.Wait()
		p.Touch()
		time.Sleep(30 * time.Second)
		p.Limit(time.Minute)
		time.Sleep(time.Hour)
		synctest.Wait()
		is.Equal(stale.Sub(began), time.Hour+time.Minute)

		p, stale = begun(time.Minute)
		time.Sleep(30 * time.Second)
		p.Limit(0) // without a limit, nothing is cancelled
		time.Sleep(time.Hour)
		synctest.Wait()
		is.True(stale.IsZero())
		p.Stop()
	})
}
