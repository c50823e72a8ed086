package runner

import plain "github.com/trapeze-run/trapeze/internal/engine"

// Encoded returns an outcome as the report of a remote worker brings it.
func Encoded(o *Outcome) *plain.Outcome {
	w, err := encodeOutcome(o)
	if err != nil {
		panic(err)
	}
	return w
}
