package api

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"

	"github.com/labstack/echo/v4"
)

// readJSON reads a request's body, which is one JSON value of v's form.
func readJSON(c echo.Context, v any) error {
	// A form of another page can send text, not JSON, without being asked first.
	if media, _, err := mime.ParseMediaType(c.Request().Header.Get("Content-Type")); err != nil || media != "application/json" {
		return &problem{status: http.StatusUnsupportedMediaType, code: "unsupported_media_type", message: "send Content-Type: application/json"}
	}
	err := Decode(c.Request().Body, v)
	switch {
	case errors.Is(err, errText):
		return &problem{status: http.StatusBadRequest, code: "invalid_text", message: errText.Error(), detail: err.Error()}
	case errors.Is(err, errJSON):
		return &problem{status: http.StatusBadRequest, code: "invalid_request", message: errJSON.Error(), detail: err.Error()}
	}
	return err
}

// optional is [readJSON] for a request that may have no body.
func optional(c echo.Context, v any) error {
	raw, err := io.ReadAll(c.Request().Body)
	if err != nil || len(raw) == 0 {
		return err
	}
	c.Request().Body = io.NopCloser(bytes.NewReader(raw))
	return readJSON(c, v)
}
