package identity

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

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
				u.Checked(time.Now())
			}
			time.Sleep(time.Second)
		}
		is.True(searches >= 5 && searches < 12)
		is.True(u.raised.IsZero()) // the searches end
		began := time.Now()
		time.Sleep(time.Millisecond)
		u.Raise()
		u.Checked(began) // this search began before the reply was lost
		time.Sleep(time.Second)
		is.True(u.Due())
	})
}
