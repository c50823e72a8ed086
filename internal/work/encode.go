package work

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// maxDepth limits the nesting of JSON to half the depth that encoding/json and, by default, PostgreSQL accept, so that a value can still be
// read when it is nested in a chain's plan, a list of jobs or another value.
const maxDepth = 5_000

// EncodeArgs encodes a job's arguments. Errors mention the kind.
func EncodeArgs(kind string, args any) (json.RawMessage, error) {
	raw, err := Encode(args, job.MaxArgsBytes)
	if err != nil {
		return nil, fmt.Errorf("%w (the args of %s)", err, kind)
	}
	return raw, nil
}

// EncodeRawArgs checks and compacts arguments that are already JSON. Empty arguments become {}.
func EncodeRawArgs(kind string, args json.RawMessage) (json.RawMessage, error) {
	if len(bytes.TrimSpace(args)) == 0 {
		args = json.RawMessage("{}")
	}
	return EncodeArgs(kind, args)
}

// EncodeResult encodes a job's result. A nil result stays nil.
func EncodeResult(result any) (json.RawMessage, error) {
	if result == nil {
		return nil, nil
	}
	raw, err := Encode(result, job.MaxResultBytes)
	if err != nil {
		return nil, fmt.Errorf("%w (the result)", err)
	}
	return raw, nil
}

// Encode encodes a value as JSON that PostgreSQL can store. It returns [job.ErrTooLarge] if the JSON exceeds limit bytes, and
// [job.ErrInvalidArgs] if the value cannot be encoded or stored.
func Encode(v any, limit int) (json.RawMessage, error) {
	raw, err := text.JSON(v)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", job.ErrInvalidArgs, err)
	case len(raw) > limit:
		return nil, fmt.Errorf("%w: %d bytes of JSON, at most %d", job.ErrTooLarge, len(raw), limit)
	case tooDeep(raw, maxDepth):
		return nil, fmt.Errorf("%w: nested deeper than %d", job.ErrInvalidArgs, maxDepth)
	}
	if what := job.Unstorable(raw); what != "" {
		return nil, fmt.Errorf("%w: %s", job.ErrInvalidArgs, what)
	}
	return raw, nil
}

// tooDeep reports whether JSON is nested deeper than limit.
func tooDeep(raw []byte, limit int) bool {
	if bytes.Count(raw, []byte("["))+bytes.Count(raw, []byte("{")) <= limit {
		return false
	}
	depth, quoted := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++ // skip the escaped character
		case quoted:
		case c == '[' || c == '{':
			if depth++; depth > limit {
				return true
			}
		case c == ']' || c == '}':
			depth--
		}
	}
	return false
}
