package view

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// The moments that a cursor may hold: the ones that JSON has, too. Beyond them lie some that PostgreSQL refuses.
var (
	earliest = time.Unix(0, 0)
	latest   = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

// pageAfter makes the cursor of the page after what was created at a moment, with an id.
func pageAfter(at time.Time, id int64) string { return fmt.Sprintf("%d.%d", at.UnixMicro(), id) }

// pageCursor reads where a page begins: after what was created at a moment, with an id. What is no cursor is [job.ErrInvalid].
func pageCursor(cursor string) (at *time.Time, id int64, err error) {
	if cursor == "" {
		return nil, 0, nil
	}
	moment, number, _ := strings.Cut(cursor, ".")
	micros, err1 := strconv.ParseInt(moment, 10, 64)
	id, err2 := strconv.ParseInt(number, 10, 64)
	t := time.UnixMicro(micros)
	if errors.Join(err1, err2) != nil || t.Before(earliest) || t.After(latest) {
		return nil, 0, fmt.Errorf("%w: cursor %.100q", job.ErrInvalid, cursor)
	}
	return &t, id, nil
}
