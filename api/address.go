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

// legible refuses a path or a query that holds what no text in PostgreSQL can, so that no door need think of it.
func legible(c echo.Context) error {
	texts := c.ParamValues()
	for _, values := range c.QueryParams() {
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
