package access

import (
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"
)

// lookEvery is how often a file is looked at, at most: so long does a token that was taken out of it go on.
const lookEvery = time.Second

// watched is a file of secrets that is read again when it has changed. One that can no longer be understood changes nothing: what it
// said before holds, and the log says why. It is safe for concurrent use.
type watched[T any] struct {
	path  string
	parse func([]byte) (T, error)
	every time.Duration

	mu     sync.Mutex
	looked time.Time
	seen   fs.FileInfo
	value  T
}

// watch reads a file for the first time: then, what is wrong with it is an error.
func watch[T any](path string, parse func([]byte) (T, error)) (*watched[T], error) {
	w := &watched[T]{path: path, parse: parse, every: lookEvery}
	if err := w.read(); err != nil {
		return nil, err
	}
	return w, nil
}

// get returns what the file says, or said when it was last understood.
func (w *watched[T]) get() T {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.looked) >= w.every {
		if err := w.read(); err != nil {
			slog.Error("invalid secrets file: the previous contents stay in use", "path", w.path, "err", err)
		}
	}
	return w.value
}

// read reads the file if it is another one than the last time. A file that is wrong is complained of once.
func (w *watched[T]) read() error {
	w.looked = time.Now()
	now, err := os.Stat(w.path)
	if err != nil {
		return err
	}
	if w.seen != nil && os.SameFile(now, w.seen) && now.ModTime().Equal(w.seen.ModTime()) && now.Size() == w.seen.Size() {
		return nil
	}
	raw, err := os.ReadFile(w.path)
	if err != nil {
		return err
	}
	w.seen = now
	value, err := w.parse(raw)
	if err != nil {
		return fmt.Errorf("%s: %w", w.path, err)
	}
	w.value = value
	return nil
}
