//go:build long

package runner_test

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Random jobs are cancelled at random times. Each job must still end exactly once, and no pipeline may report its end too early.
func TestRandomCancelsInPipelines(t *testing.T) {
	t.Parallel()
	inOrchards(t, func(try *rapid.T, o *orchard, trees forest) {
		o.plant(try, trees)
		seed := rapid.Uint64().Draw(try, "seed")
		var cancelling sync.WaitGroup
		for i := range rapid.IntRange(1, 6).Draw(try, "cancels") {
			cancelling.Go(func() {
				dice := rand.New(rand.NewPCG(seed, uint64(i)))
				r := []*runner.Runner{o.a, o.b}[dice.IntN(2)]
				<-time.After(time.Duration(dice.IntN(60)) * time.Millisecond) // at a random time
				var id int64
				err := o.pool.QueryRow(try.Context(), `select id from trapeze.jobs order by id offset $1 * (select count(*) from trapeze.jobs) limit 1`,
					dice.Float64()*0.999).Scan(&id)
				if err == nil && dice.IntN(4) == 0 {
					_, err = r.Admin("dice").ForceCancel(try.Context(), id)
				} else if err == nil {
					_, err = r.Admin("dice").Cancel(try.Context(), id)
				}
				if err != nil && !errors.Is(err, job.ErrAlreadyTerminal) {
					try.Errorf("cancel: %v", err)
				}
			})
		}
		o.rest(try)
		cancelling.Wait()
		o.rest(try)
		o.sound(try)
	})
}
