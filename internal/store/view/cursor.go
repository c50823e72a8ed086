package view

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// The range of times that a cursor may hold, which is also that of JSON. PostgreSQL rejects some times outside
// it.
var (
	earliest = time.Unix(0, 0)
	latest   = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

// pageAfter returns the cursor of the page after the row that was created at the given time, with an id.
func pageAfter(at time.Time, id int64) string { return fmt.Sprintf("%d.%d", at.UnixMicro(), id) }

// pageCursor parses the cursor of a page: after the row that was created at the returned time, with an id. Error:
// [job.ErrInvalid].
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
