package access

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

// checkInterval is the minimum interval between checks of a file. A removed token can remain valid for that long.
const checkInterval = time.Second

// watchedFile is a file of secrets that is reread when it changes. If the new content is invalid, the error is logged and the last valid
// content stays in effect. It is safe for concurrent use.
type watchedFile[T any] struct {
	path  string
	parse func([]byte) (T, error)
	every time.Duration

	mu        sync.Mutex
	checkedAt time.Time
	seen      fs.FileInfo
	value     T
}

// watch reads a file for the first time, and returns an error if its content is invalid.
func watch[T any](path string, parse func([]byte) (T, error)) (*watchedFile[T], error) {
	w := &watchedFile[T]{path: path, parse: parse, every: checkInterval}
	if err := w.read(); err != nil {
		return nil, err
	}
	return w, nil
}

// get returns the file's latest valid content.
func (w *watchedFile[T]) get() T {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.checkedAt) >= w.every {
		if err := w.read(); err != nil {
			slog.Error("invalid secrets file: the previous contents stay in use", "path", w.path, "err", err)
		}
	}
	return w.value
}

// read reads the file if it has changed. An invalid version is reported only once.
func (w *watchedFile[T]) read() error {
	w.checkedAt = time.Now()
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

// decodeSecrets decodes the JSON of a file of secrets into v. It rejects unknown fields, and quotes the name of one only if the name is too
// short for a secret.
func decodeSecrets(raw []byte, v any) error {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(v)
	if err == nil {
		return nil
	}
	if _, name, unknown := strings.Cut(err.Error(), "unknown field "); unknown && len(name) >= minToken {
		return errors.New("unknown field; its name is not shown, because it may be a secret")
	}
	return err
}
