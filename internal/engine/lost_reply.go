package engine

import (
	"context"

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/store"
)

// untilKnown makes a write of which this process must know whether it was committed. err is the error of the first attempt. Once a reply was
// lost, committed reads back, after each failed attempt, whether an earlier one was committed after all; nil stands for an idempotent write.
// If none was, send sends the write again, unless final reports that no further attempt can succeed. If send is nil, or the read-back has failed,
// only the read-back is repeated. If ctx ends first, untilKnown returns the error of the last attempt, for which [store.Unknown] is true if an attempt may
// have been committed. A [flusher] does the same for a batch of completions.
func (s *shared) untilKnown(ctx context.Context, err error, committed func(context.Context) (bool, error), send func(context.Context) error, final func(error) bool) error {
	var lost error // of the first attempt whose reply was lost
	for backoff := routine.NewBackoff(); err != nil; {
		var unread error
		if lost == nil && store.Unknown(err) {
			lost = err
		}
		if lost != nil && committed != nil {
			var done bool
			if done, unread = committed(ctx); done {
				return nil
			}
		}
		if unread == nil && (send == nil || final(err)) {
			return err
		}
		if !backoff.Wait(ctx) {
			if unread != nil {
				return lost
			}
			return err
		}
		if send != nil && unread == nil {
			err = s.DBError(send(ctx))
		}
	}
	return nil
}
