package host

import (
	"context"
	"math"
	"time"

	"github.com/trapeze-run/trapeze/internal/batch"
	"github.com/trapeze-run/trapeze/internal/store"
)

// adoptions reads which claims the tables assign to remote workers. To keep claims cheap, no index contains the pod, so each read scans all
// waiting and running jobs. When a pod crashes, all its workers reconnect to other pods at the same time, and each worker needs such a read
// several times. Workers that request a read while another is running share the next read. They cannot share the running one, because it
// may miss their latest claims.
type adoptions = batch.Batcher[string, []store.Held]

// adoptionTimeout is the timeout of one read.
const adoptionTimeout = 30 * time.Second

// newAdoptions returns an adoptions value that reads with the given function, usually [store.Store.Held].
func newAdoptions(read func(ctx context.Context, boots ...string) ([]store.Held, error)) *adoptions {
	return batch.New(1, math.MaxInt, func(boots []string) ([][]store.Held, error) {
		ctx, cancel := context.WithTimeout(context.Background(), adoptionTimeout)
		defer cancel()
		held, err := read(ctx, boots...)
		of := make(map[string][]store.Held, len(boots))
		for _, h := range held {
			of[h.Pod] = append(of[h.Pod], h)
		}
		results := make([][]store.Held, len(boots))
		for i, boot := range boots {
			results[i] = of[boot]
		}
		return results, err
	})
}
