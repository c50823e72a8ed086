package feed

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// Where a stream may begin, instead of at a cursor.
const (
	Beginning = "0"   // with the oldest event that is kept
	Now       = "now" // with what happens from now on
)

// cursor is a place in a stream: <epoch>-<kind><place>. The place is the number of a job's event, the position in the feed of all, or,
// of a pipeline, what has been seen of it.
type cursor struct {
	epoch string // empty: the reader does not say; his history is taken for ours
	kind  byte
	place string
}

func (c cursor) String() string { return c.epoch + "-" + string(c.kind) + c.place }

// parseCursor reads a cursor of a kind: else [job.ErrInvalid].
func parseCursor(text string, kind byte) (c cursor, err error) {
	epoch, rest, ok := strings.Cut(text, "-")
	if !ok || len(epoch) != 8 || len(rest) < 2 || rest[0] != kind {
		return c, fmt.Errorf("%w: %.100q is not a cursor of this stream", job.ErrInvalid, text)
	}
	return cursor{epoch, kind, rest[1:]}, nil
}

// ofJob reads the number of the last event of a job that was seen. It takes the cursor of the event itself, too, as lists have it.
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

// ofAll reads the position of the last event that was seen. It takes the cursor of the event itself, too.
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

// sight is what has been seen of a pipeline: all that some transactions wrote, and of what others wrote the part up to an event.
type sight struct {
	seen   view.Seen
	within *view.Seen // nil: nothing in part
	at     view.Position
}

func (s sight) String() string {
	if s.within == nil {
		return s.seen.String()
	}
	return fmt.Sprintf("%s~%s~%d.%d", s.seen, s.within, s.at.Job, s.at.EventNo)
}

// ofPipeline reads what has been seen of a pipeline.
func ofPipeline(text string) (epoch string, s sight, err error) {
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
