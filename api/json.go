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

	"github.com/trapeze-run/trapeze/job"
)

// readJSON reads a request's body: one JSON value of v's form.
func readJSON(c echo.Context, v any) error {
	// A form of another page can send text without a preflight request, but not JSON.
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

// optional reads as [readJSON] a body that may be empty, which leaves v as it is.
func optional(c echo.Context, v any) error {
	raw, err := io.ReadAll(c.Request().Body)
	if err != nil || len(raw) == 0 {
		return err
	}
	c.Request().Body = io.NopCloser(bytes.NewReader(raw))
	return readJSON(c, v)
}

// Decode reads one JSON value into v: a field that v does not have, one that is there twice, a second value, and text
// that is no UTF-8 are errors.
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
	if pointer, found := twice(raw); found {
		return fmt.Errorf("%w: duplicate member %.200s", errJSON, pointer)
	}
	return nil
}

var (
	errText = errors.New("invalid text")
	errJSON = errors.New("JSON of an unexpected type")
)

// twice finds a member that an object of valid JSON has twice, as a JSON pointer. Of two, readers
// take the first, the last or both, so a check of one does not hold for another. Members of ours are the same in upper and lower case, as
// encoding/json takes them; in arguments and results, which are the handlers' own, only when they are the same to the letter.
func twice(raw []byte) (pointer string, found bool) {
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
	_, _ = d.Token() // its end
	return "", false
}

// Delay is a length of time in JSON: seconds as a number, or text such as "1m30s".
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

// plain is the context of a request whose JSON goes out as it came in: echo escapes <, > and & as \u003c, \u003e and \u0026, so that
// the arguments of a job would not be the bytes that were submitted. The answers are not put into pages, and a header keeps browsers from
// reading them as such. It is for the API's handlers alone: a host's echo keeps its own way.
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

// encodeJSON encodes a value without escaping for pages.
func encodeJSON(v any) ([]byte, error) {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	return bytes.TrimSuffix(buffer.Bytes(), []byte("\n")), err
}
