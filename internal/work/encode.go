package work

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/trapeze-run/trapeze/job"
)

// maxDepth is how deep JSON may be nested: half of what encoding/json reads, and PostgreSQL by default, so that it can still be read within
// the plan of a chain, a list of jobs or another value around it.
const maxDepth = 5_000

// EncodeArgs encodes the arguments of a job of a kind.
func EncodeArgs(kind string, args any) (json.RawMessage, error) {
	raw, err := Encode(args, job.MaxArgsBytes)
	if err != nil {
		return nil, fmt.Errorf("%w (the args of %s)", err, kind)
	}
	return raw, nil
}

// EncodeRawArgs checks arguments that are JSON already, and compacts them. Empty ones are {}.
func EncodeRawArgs(kind string, args json.RawMessage) (json.RawMessage, error) {
	if len(bytes.TrimSpace(args)) == 0 {
		args = json.RawMessage("{}")
	}
	return EncodeArgs(kind, args)
}

// EncodeResult encodes the result of a job: nil when it has none.
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

// Encode encodes a value as JSON of bounded size that PostgreSQL can store. Errors: [job.ErrInvalidArgs], [job.ErrTooLarge].
func Encode(v any, limit int) (json.RawMessage, error) {
	raw, err := asItIs(v)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", job.ErrInvalidArgs, err)
	case len(raw) > limit:
		return nil, fmt.Errorf("%w: %d bytes of JSON, at most %d", job.ErrTooLarge, len(raw), limit)
	case deeper(raw, maxDepth):
		return nil, fmt.Errorf("%w: nested deeper than %d", job.ErrInvalidArgs, maxDepth)
	}
	if what := job.Unstorable(raw); what != "" {
		return nil, fmt.Errorf("%w: %s", job.ErrInvalidArgs, what)
	}
	return raw, nil
}

// deeper reports whether JSON is nested deeper than a limit.
func deeper(raw []byte, limit int) bool {
	if bytes.Count(raw, []byte("["))+bytes.Count(raw, []byte("{")) <= limit {
		return false
	}
	depth, quoted := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++ // the escaped character
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

// asItIs encodes a value as JSON. It escapes nothing for HTML, so that JSON which was submitted keeps its bytes.
func asItIs(v any) (json.RawMessage, error) {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	return bytes.TrimSuffix(buffer.Bytes(), []byte("\n")), err
}
