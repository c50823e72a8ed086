package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"
)

// reply is an answer whose status is not its route's usual one.
type reply struct {
	status int
	body   any
}

// changed answers a command that opens something, or closes it without waiting.
type changed struct {
	Changed bool `json:"changed"` // false: it was so before
}

// pageOf is a page of a list. A full one has the cursor of the next page, which its last row gives.
func pageOf[T any](name string, list []T, limit int, cursor func(last T) string) map[string]any {
	next := ""
	if len(list) == limit {
		next = cursor(list[len(list)-1])
	}
	return map[string]any{name: orEmpty(list), "next_cursor": next}
}

// orEmpty returns a list that is [] in JSON, not null.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func idText(id int64) string { return strconv.FormatInt(id, 10) }

func idTexts(ids []int64) []string {
	list := make([]string, len(ids))
	for i, id := range ids {
		list[i] = idText(id)
	}
	return list
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

// secure sets how browsers treat an answer: nothing is loaded from elsewhere, no script or style inside a page runs, no page frames it,
// and no cache keeps it. Referrers stay within the origin: with none at all, a browser hides the origin of its own forms as well.
func secure(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}
