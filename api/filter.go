package api

import (
	"errors"

	"github.com/labstack/echo/v4"
)

// errNoFilter is what a reader of filters says of one that it does not know.
var errNoFilter = errors.New("there is no such filter")

// eachFilter has every filter of a list read, by its last value; what cannot be read is an error, and so is a filter that is not known,
// for without it the list would show too much.
func eachFilter(c echo.Context, read func(name, value string, values []string) error) error {
	for name, values := range c.QueryParams() {
		if err := read(name, values[len(values)-1], values); err != nil {
			return invalid("filter %s: %s", name, err)
		}
	}
	return nil
}
