package api

import (
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/labstack/echo/v4"
)

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
