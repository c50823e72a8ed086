package api

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/api/internal/response"
	"github.com/trapeze-run/trapeze/internal/text"
)

// unescape unescapes the path parameters. The router leaves them escaped if the path contains an escaped slash.
func unescape(c echo.Context) {
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

// checkText rejects a query that cannot be parsed completely, and text in a path or query that PostgreSQL cannot store, so individual
// routes need not check for either. It is strict because the standard library drops the parts of a query that it cannot parse: without the
// check, ?dry_run=true; would make a real change.
func checkText(c echo.Context) error {
	query, err := url.ParseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return &response.Problem{Status: http.StatusBadRequest, Code: "invalid_query", Message: "invalid query string",
			Detail: "separate parameters with &, and encode ; and % as %3B and %25: " + err.Error()}
	}
	texts := c.ParamValues()
	for _, values := range query {
		texts = append(texts, values...)
	}
	for _, text := range texts {
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return &response.Problem{Status: http.StatusBadRequest, Code: "invalid_text", Message: errText.Error(),
				Detail: "the path or the query contains invalid UTF-8 or a NUL character"}
		}
	}
	return nil
}

// eachFilter calls read for every filter in a list request, with the filter's last value and all its values.
func eachFilter(c echo.Context, read func(name, value string, values []string) error) error {
	for name, values := range c.QueryParams() {
		if err := read(name, values[len(values)-1], values); err != nil {
			return response.Invalid("filter %s: %s", name, err)
		}
	}
	return nil
}

// limitOf parses the limit parameter.
func limitOf(c echo.Context, usual int) (int, error) {
	given := c.QueryParam("limit")
	if given == "" {
		return usual, nil
	}
	limit, err := text.ParseLimit(given)
	if err != nil {
		err = response.Invalid("limit: %s", err)
	}
	return limit, err
}

// boolParam parses a boolean query parameter.
func boolParam(c echo.Context, name string) (bool, error) {
	text := c.QueryParam(name)
	if text == "" {
		return false, nil
	}
	yes, err := strconv.ParseBool(text)
	if err != nil {
		return false, response.Invalid("%s %q: want true or false", name, text)
	}
	return yes, nil
}

func idText(id int64) string { return strconv.FormatInt(id, 10) }

func idTexts(ids []int64) []string {
	list := make([]string, len(ids))
	for i, id := range ids {
		list[i] = idText(id)
	}
	return list
}
