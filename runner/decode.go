package runner

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/trapeze-run/trapeze/job"
)

// decodeArgs decodes the arguments of a job into args. Its error is permanent, for they stay as they are. It is shown to people who may
// not see secrets, so it names the place and the types, never a value.
func decodeArgs(kind string, raw json.RawMessage, args any) error {
	err := json.Unmarshal(raw, args)
	if err == nil {
		return nil
	}
	return job.Permanent(fmt.Errorf("%w: decode the args of %s: %s", job.ErrInvalidArgs, kind, withoutValues(err)))
}

// withoutValues describes an error of decoding JSON. The text of a decoder that is not ours to know may quote what it read.
func withoutValues(err error) string {
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf("the JSON is broken at byte %d", syntax.Offset)
	}
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return fmt.Sprintf("a decoder of its type refused a value with %T, whose text is left out because it may hold a secret", err)
	}
	have, _, _ := strings.Cut(wrong.Value, " ") // of a number this is "number" and the number itself
	if wrong.Field == "" {
		return fmt.Sprintf("want %s, have %s", wrong.Type, have)
	}
	return fmt.Sprintf("field %s: want %s, have %s", wrong.Field, wrong.Type, have)
}
