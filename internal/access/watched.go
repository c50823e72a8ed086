package access

import (
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"
)

// checkInterval is the minimum interval between checks of a file. A removed token stays valid for this long.
const checkInterval = time.Second

// watchedFile is a file of secrets that is read again when it has changed. If it can no longer be parsed, its last valid content
// applies, and the log has the reason. It is safe for concurrent use.
type watchedFile[T any] struct {
	path  string
	parse func([]byte) (T, error)
	every time.Duration

	mu     sync.Mutex
	looked time.Time
	seen   fs.FileInfo
	value  T
}

// watch reads a file for the first time. A mistake in it is then an error.
func watch[T any](path string, parse func([]byte) (T, error)) (*watchedFile[T], error) {
	w := &watchedFile[T]{path: path, parse: parse, every: checkInterval}
	if err := w.read(); err != nil {
		return nil, err
	}
	return w, nil
}

// get returns the latest valid content of the file.
func (w *watchedFile[T]) get() T {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.looked) >= w.every {
		if err := w.read(); err != nil {
			slog.Error("invalid secrets file: the previous contents stay in use", "path", w.path, "err", err)
		}
	}
	return w.value
}

// read reads the file if it has changed. It logs an invalid file once.
func (w *watchedFile[T]) read() error {
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
