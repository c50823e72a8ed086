package api

import (
	"bytes"
	"encoding/json"

	"github.com/labstack/echo/v4"
)

// plain is the context of a request whose JSON goes out as it came in: echo's own writes <, > and & as \u003c, \u003e and \u0026, so that
// the arguments of a job would not be the bytes that were submitted. Nothing of it is put into a page, and the header says that it is no
// page. It belongs to the API's handlers alone: a host's echo keeps its own way.
type plain struct{ echo.Context }

// JSON answers with a value. An error of encoding leaves the answer unsent.
func (c plain) JSON(status int, v any) error {
	raw, err := encodeJSON(v)
	if err != nil {
		return err
	}
	c.Response().Header().Set(echo.HeaderXContentTypeOptions, "nosniff")
	return c.Blob(status, "application/json; charset=UTF-8", append(raw, '\n'))
}

// encodeJSON encodes a value without escaping what only pages need escaped.
func encodeJSON(v any) ([]byte, error) {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	return bytes.TrimSuffix(buffer.Bytes(), []byte("\n")), err
}
