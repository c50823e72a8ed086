package feed

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// Start positions to use instead of a cursor.
const (
	Beginning = "0"   // start with the oldest stored event
	Now       = "now" // start with the next event
)

// cursor is a position in a stream, written as <epoch>-<kind><place>. The place is an event number for a job, a set of delivered events for
// a pipeline, and a position for the feed of all events.
type cursor struct {
	epoch string // empty if unknown; then assumed to be the current epoch
	kind  byte
	place string
}

func (c cursor) String() string { return c.epoch + "-" + string(c.kind) + c.place }

// parseCursor parses a cursor of the given kind. It returns [job.ErrInvalid] for any other text.
func parseCursor(text string, kind byte) (c cursor, err error) {
	epoch, rest, ok := strings.Cut(text, "-")
	if !ok || len(epoch) != 8 || len(rest) < 2 || rest[0] != kind {
		return c, fmt.Errorf("%w: %.100q is not a cursor of this stream", job.ErrInvalid, text)
	}
	return cursor{epoch, kind, rest[1:]}, nil
}

// ofJob parses a job stream's cursor, and returns the number of the last delivered event. It also accepts an event's cursor from an event
// list.
func ofJob(text string, id int64) (epoch string, no int, err error) {
	if at, err := view.ParsePosition(text); err == nil && text != "" && at.Job == id {
		return "", at.EventNo, nil
	}
	c, err := parseCursor(text, aJob)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(c.place, 10, 31)
	if err != nil {
		return "", 0, fmt.Errorf("%w: cursor %.100q", job.ErrInvalid, text)
	}
	return c.epoch, int(n), nil
}

// ofAll parses the cursor of a stream of all events, and returns the last delivered event's position. It also accepts an event's cursor
// from an event list.
func ofAll(text string) (epoch string, at view.Position, err error) {
	if !strings.Contains(text, "-") {
		at, err = view.ParsePosition(text)
		return "", at, err
	}
	c, err := parseCursor(text, everything)
	if err != nil {
		return "", at, err
	}
	at, err = view.ParsePosition(c.place)
	return c.epoch, at, err
}

// delivered records which of a pipeline's events have been delivered: all events of the transactions in seen, and the events up to at of
// the other transactions in within.
type delivered struct {
	seen   view.Seen
	within *view.Seen // nil if no transaction has been delivered in part
	at     view.Position
}

func (s delivered) String() string {
	if s.within == nil {
		return s.seen.String()
	}
	return fmt.Sprintf("%s~%s~%d.%d", s.seen, s.within, s.at.Job, s.at.EventNo)
}

// ofPipeline parses a pipeline stream's cursor, and returns a record of the delivered events.
func ofPipeline(text string) (epoch string, s delivered, err error) {
	c, err := parseCursor(text, aPipeline)
	if err != nil {
		return "", s, err
	}
	parts := strings.Split(c.place, "~")
	if s.seen, err = view.ParseSeen(parts[0]); err != nil || len(parts) == 1 {
		return c.epoch, s, err
	}
	if len(parts) != 3 {
		return "", s, fmt.Errorf("%w: cursor %.100q", job.ErrInvalid, text)
	}
	within, err := view.ParseSeen(parts[1])
	if err != nil {
		return "", s, err
	}
	if s.at, err = view.ParsePosition("0." + parts[2]); err != nil {
		return "", s, err
	}
	s.within = &within
	return c.epoch, s, nil
}
