package runner

import (
	"github.com/trapeze-run/trapeze/internal/work"
)

// Encoded returns an outcome as the report of a remote worker brings it.
func Encoded(o *Outcome) *work.Outcome {
	w, err := encodeOutcome(o)
	if err != nil {
		panic(err)
	}
	return w
}
