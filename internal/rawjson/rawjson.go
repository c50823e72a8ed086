// Package rawjson encodes values as JSON without HTML escapes, so that JSON from a submitter keeps the characters <, > and &. By default,
// encoding/json writes them as \u003c, \u003e and \u0026, even inside a [json.RawMessage].
package rawjson

import (
	"bytes"
	"encoding/json"
)

// Encode returns the JSON encoding of v on one line, without a trailing newline.
func Encode(v any) (json.RawMessage, error) {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	return bytes.TrimSuffix(buffer.Bytes(), []byte("\n")), err
}
