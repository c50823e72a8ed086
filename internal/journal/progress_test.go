package journal

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
)

func TestHeldProgressAtRunEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		c := new(chronicle)
		var n Progress
		n.Init(c.writer())
		note := func(done int64) { n.Set(job.Progress{Done: &done}) }
		note(1)
		synctest.Wait()
		note(2) // must wait for the interval
		synctest.Wait()
		note(3)
		began := time.Now()
		n.Close()
		is.Equal(time.Since(began), time.Duration(0)) // a hand-off must not wait
		is.Equal(c.done, []int64{1, 3})               // the latest value is still written
		note(4)
		is.Equal(len(c.done), 2) // nothing is written after Close
	})
}
