package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

// begun is a pulse that watches, and the moment at which it ended the handler.
func begun(after time.Duration) (p *pulse, stale *time.Time) {
	p, stale = &pulse{}, &time.Time{}
	p.begin(func(error) { *stale = time.Now() }, after)
	return p, stale
}

func TestAPulseEndsWhoeverGivesNoSignOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		p, stale := begun(time.Minute)
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
		is := is.New(t)
		p, stale := begun(time.Minute)
		time.Sleep(59 * time.Second)
		p.end()
		p.watch(time.Second)
		time.Sleep(time.Hour)
		synctest.Wait()
		is.True(stale.IsZero())
	})
}

func TestWhatIsOffHasNoTimer(t *testing.T) {
	is := is.New(t)
	p, _ := begun(0)
	is.True(p.timer == nil) // nothing to stop
	p.beat()
	p.end()
}

func TestALimitThatIsSetDuringARunCountsFromTheLatestSign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		p, stale := begun(0)
		began := time.Now()
		time.Sleep(time.Hour)
		synctest.Wait()
		p.beat()
		time.Sleep(30 * time.Second)
		p.watch(time.Minute)
		time.Sleep(time.Hour)
		synctest.Wait()
		is.Equal(stale.Sub(began), time.Hour+time.Minute)

		p, stale = begun(time.Minute)
		time.Sleep(30 * time.Second)
		p.watch(0) // and one that is taken away does not count
		time.Sleep(time.Hour)
		synctest.Wait()
		is.True(stale.IsZero())
		p.end()
	})
}
