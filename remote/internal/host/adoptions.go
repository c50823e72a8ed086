package host

import (
	"context"
	"math"
	"time"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
)

// adoptions reads which claims the tables assign to remote workers. The tables have no index on the pod, which keeps claiming cheap but
// makes each read scan all waiting and running jobs. When a pod crashes, all its workers reconnect to other pods at once, and each worker
// needs several reads. Workers that request a read while another is running therefore share the next one. They cannot share the running
// read, because it may miss their latest claims.
type adoptions = routine.Batcher[string, []store.Held]

// adoptionTimeout is the timeout of one read.
const adoptionTimeout = 30 * time.Second

// newAdoptions returns an adoptions value that reads claims by calling read, usually [store.Store.Held].
func newAdoptions(read func(ctx context.Context, podIDs ...string) ([]store.Held, error)) *adoptions {
	return routine.NewBatcher(1, math.MaxInt, func(podIDs []string) ([][]store.Held, error) {
		ctx, cancel := context.WithTimeout(context.Background(), adoptionTimeout)
		defer cancel()
		held, err := read(ctx, podIDs...)
		of := make(map[string][]store.Held, len(podIDs))
		for _, h := range held {
			of[h.Pod] = append(of[h.Pod], h)
		}
		results := make([][]store.Held, len(podIDs))
		for i, podID := range podIDs {
			results[i] = of[podID]
		}
		return results, err
	})
}
