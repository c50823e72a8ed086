package view

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// earliest and latest bound the times in a cursor. JSON can represent all times in this range, and PostgreSQL rejects some times outside
// it.
var (
	earliest = time.Unix(0, 0)
	latest   = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

// pageAfter returns the cursor of the page that starts after the row with the given creation time and id.
func pageAfter(at time.Time, id int64) string { return fmt.Sprintf("%d.%d", at.UnixMicro(), id) }

// pageCursor parses a page cursor. It returns the creation time and id of the row after which the page starts. If the cursor is invalid, it
// returns [job.ErrInvalid].
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
