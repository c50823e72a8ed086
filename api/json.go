package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

// readJSON reads a request body into v. The body must be a single JSON value.
func readJSON(c echo.Context, v any) error {
	// A form on another origin's page can send text without a preflight request, but not JSON.
	if err := checkMedia(c, "application/json"); err != nil {
		return err
	}
	err := Decode(c.Request().Body, v)
	switch {
	case errors.Is(err, errText):
		return &problem{Status: http.StatusBadRequest, Code: "invalid_text", Message: errText.Error(), Detail: err.Error()}
	case errors.Is(err, errJSON):
		return &problem{Status: http.StatusBadRequest, Code: "invalid_request", Message: errJSON.Error(), Detail: err.Error()}
	}
	return err
}

// checkMedia returns an error if a request's body is not of the given media type.
func checkMedia(c echo.Context, want string) error {
	if media, _, err := mime.ParseMediaType(c.Request().Header.Get("Content-Type")); err != nil || media != want {
		return &problem{Status: http.StatusUnsupportedMediaType, Code: "unsupported_media_type", Message: "send Content-Type: " + want}
	}
	return nil
}

// Decode reads one JSON value into v. It rejects unknown fields, duplicate fields, a second value, and text that is not UTF-8.
func Decode(body io.Reader, v any) error {
	raw, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	if what := job.Unstorable(raw); what != "" {
		return fmt.Errorf("%w: %s, which PostgreSQL cannot store", errText, what)
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(v); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("empty body")
		}
		return fmt.Errorf("%w: %w", errJSON, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: data after the JSON value", errJSON)
	}
	if pointer, found := duplicateMember(raw); found {
		return fmt.Errorf("%w: duplicate member %.200s", errJSON, pointer)
	}
	return nil
}

// requestBody is a request's body. A failed read is the client's fault: the body is malformed, truncated or too slow.
type requestBody struct{ io.ReadCloser }

func (b requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	_, tooLarge := errors.AsType[*http.MaxBytesError](err)
	if err == nil || err == io.EOF || tooLarge { //nolint:errorlint // the end of a body is exactly io.EOF
		return n, err
	}
	return n, &problem{Status: http.StatusBadRequest, Code: "invalid_request", Message: "request body incomplete or malformed", Err: err}
}

var (
	errText = errors.New("invalid text")
	errJSON = errors.New("invalid JSON body")
)

// duplicateMember returns a JSON pointer to a duplicate member of an object in valid JSON. Some parsers use the first duplicate and some
// the last, so checking one of them would not protect the programs that use the other. Names of API fields are compared case-insensitively,
// as in encoding/json. Names in arguments and results belong to the handlers and are compared exactly.
func duplicateMember(raw []byte) (pointer string, found bool) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return twiceIn(d, true)
}

func twiceIn(d *json.Decoder, ours bool) (pointer string, found bool) {
	token, err := d.Token()
	if err != nil {
		return "", false
	}
	switch token {
	case json.Delim('{'):
		names := map[string]bool{}
		for d.More() {
			token, err := d.Token()
			name, ok := token.(string)
			if err != nil || !ok {
				return "", false
			}
			folded := strings.ToLower(strings.ToUpper(name))
			key := name
			if ours {
				key = folded
			}
			if names[key] {
				return "/" + name, true
			}
			names[key] = true
			if below, found := twiceIn(d, ours && folded != "args" && folded != "result"); found {
				return "/" + name + below, true
			}
		}
	case json.Delim('['):
		for i := 0; d.More(); i++ {
			if below, found := twiceIn(d, ours); found {
				return "/" + strconv.Itoa(i) + below, true
			}
		}
	default:
		return "", false
	}
	_, _ = d.Token() // the closing delimiter
	return "", false
}

// Delay is a duration in JSON: seconds as a number, or text such as "1m30s".
type Delay time.Duration

// MarshalJSON implements [json.Marshaler].
func (d Delay) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON implements [json.Unmarshaler].
func (d *Delay) UnmarshalJSON(raw []byte) error {
	text := string(bytes.Trim(raw, `"`))
	if text == "null" || text == "" {
		return nil
	}
	if seconds, err := strconv.ParseFloat(text, 64); err == nil {
		const most = 100 * 365 * 24 * 3600
		if !(seconds >= 0 && seconds <= most) {
			return fmt.Errorf("delay %s: want 0 to %d seconds", raw, most)
		}
		*d = Delay(seconds * float64(time.Second))
		return nil
	}
	length, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("delay %s: want seconds, or a duration such as \"1m30s\"", raw)
	}
	*d = Delay(length)
	return nil
}

// plain is a context that encodes JSON without HTML escapes. By default, echo escapes <, > and & as \u003c, \u003e and \u0026, so the
// arguments of a job would differ from the submitted bytes. Escaping is unnecessary because responses are not embedded in pages, and a
// header keeps browsers from interpreting them as pages. Only the API's handlers use plain, so a host's echo keeps its own encoding.
type plain struct{ echo.Context }

// JSON writes a value as the response. If encoding fails, it sends nothing.
func (c plain) JSON(status int, v any) error {
	raw, err := text.JSON(v)
	if err != nil {
		return err
	}
	c.Response().Header().Set(echo.HeaderXContentTypeOptions, "nosniff")
	return c.Blob(status, "application/json; charset=UTF-8", append(raw, '\n'))
}
