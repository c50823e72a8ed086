package text

import (
	"bytes"
	"encoding/json"
)

// JSON returns the JSON encoding of v on one line, without a trailing newline.
func JSON(v any) (json.RawMessage, error) {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	return bytes.TrimSuffix(buffer.Bytes(), []byte("\n")), err
}
