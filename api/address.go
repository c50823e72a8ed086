package api

import (
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/labstack/echo/v4"
)

// asMeant reads the parameters of a path as they were meant: the router leaves them as they were sent where the path holds an escaped slash.
func asMeant(c echo.Context) {
	if c.Request().URL.RawPath == "" {
		return
	}
	values := c.ParamValues()
	for i, name := range c.ParamNames() {
		if meant, err := url.PathUnescape(values[i]); err == nil && name != "*" {
			values[i] = meant
		}
	}
	c.SetParamValues(values...)
}

// legible refuses a query that cannot be parsed as a whole, and a path or a query that holds what no text in PostgreSQL
// can, so that no route needs its own check. The standard library drops the parts of a query that it cannot parse:
// ?dry_run=true; would be a change.
func legible(c echo.Context) error {
	query, err := url.ParseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return &problem{status: http.StatusBadRequest, code: "invalid_query", message: "the query cannot be parsed",
			detail: "separate parameters with &, and write ; and % as %3B and %25: " + err.Error()}
	}
	texts := c.ParamValues()
	for _, values := range query {
		texts = append(texts, values...)
	}
	for _, text := range texts {
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return &problem{status: http.StatusBadRequest, code: "invalid_text", message: errText.Error(),
				detail: "the path or the query holds bytes that are no UTF-8, or a NUL character"}
		}
	}
	return nil
}
