package store_test

import (
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/trapeze-run/trapeze/internal/store"
)

// If a worker's stream breaks while it is being opened, the worker immediately opens another, so pods may handle both concurrently.
func TestConcurrentStreamsOfNewWorker(t *testing.T) {
	w := newWorld(t)
	for range 40 {
		podID, errs := uuid.NewString(), make([]error, 3)
		var opening sync.WaitGroup
		for i := range errs {
			opening.Go(func() {
				_, errs[i] = store.OpenWorker(t.Context(), w.Store, store.PodInfo{PodID: podID, Name: "gpu-1", Kinds: []string{"k"}, Slots: 2}, "gpu", []byte("a key"), []byte("[]"), lease)
			})
		}
		opening.Wait()
		for _, err := range errs {
			w.is.NoErr(err) // the second stream takes over the row
		}
	}
}
