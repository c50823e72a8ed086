package runner

import (
	"context"
	"errors"
	"sync"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// firstEvents merges the events that handlers wait for, of many jobs at the same time, into one statement and one commit. There
// is no timer: whoever comes first writes at once, and what comes meanwhile is written together by the next. Whatever is under way
// has handlers that wait for it, and the store's own deadline.
type firstEvents struct {
	write func(ctx context.Context, list []store.Emitted) (map[job.Lease]bool, error)

	mu      sync.Mutex
	queue   []*firstEvent
	writing int
}

const (
	firstWriters = 2   // statements under way at the same time
	firstAtMost  = 500 // events in one
)

// firstEvent is an event on its way, answered once.
type firstEvent struct {
	store.Emitted
	answer chan error
}

// errPassedBy says that an event was not written with the others: it is to be written alone, which tells why.
var errPassedBy = errors.New("passed by")

// emit writes an event of a claim. It returns errPassedBy, or why the whole statement failed.
func (f *firstEvents) emit(ctx context.Context, e store.Emitted) error {
	one := &firstEvent{Emitted: e, answer: make(chan error, 1)}
	f.mu.Lock()
	f.queue = append(f.queue, one)
	leads := f.writing < firstWriters
	if leads {
		f.writing++
	}
	f.mu.Unlock()
	if leads {
		f.lead()
	}
	select {
	case err := <-one.answer:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// lead writes one batch, and leaves what has come meanwhile to somebody who does nothing else.
func (f *firstEvents) lead() {
	if f.batch() {
		go func() {
			for f.batch() {
			}
		}()
	}
}

// batch writes what is queued and reports whether more is.
func (f *firstEvents) batch() (more bool) {
	f.mu.Lock()
	n := min(len(f.queue), firstAtMost)
	batch := f.queue[:n:n]
	f.queue = f.queue[n:]
	f.mu.Unlock()
	if n > 0 {
		list := make([]store.Emitted, n)
		for i, one := range batch {
			list[i] = one.Emitted
		}
		// The others' events must not end with one handler's context; the store bounds the statement.
		written, err := f.write(context.Background(), list)
		if store.Refused(err) {
			written, err = nil, nil
		}
		for _, one := range batch {
			switch {
			case err != nil:
				one.answer <- err
			case written[one.Lease]:
				one.answer <- nil
			default:
				one.answer <- errPassedBy
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.queue) == 0 {
		f.writing--
		return false
	}
	return true
}
