package runner

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
)

func TestTheEndOfARunDoesNotWaitForThePaceOfNotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var written []int64
		n := notes{write: func(_ context.Context, p job.Progress) error {
			written = append(written, *p.Done)
			return nil
		}}
		note := func(done int64) { n.set(job.Progress{Done: &done}) }
		note(1)
		synctest.Wait()
		note(2) // waits for its turn
		synctest.Wait()
		note(3)
		began := time.Now()
		n.close()
		is.Equal(time.Since(began), time.Duration(0)) // a hand-off must not wait
		is.Equal(written, []int64{1, 3})              // the latest note is there all the same
		note(4)
		is.Equal(len(written), 2) // nothing after the end
	})
}
