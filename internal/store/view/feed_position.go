package view

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/trapeze-run/trapeze/job"
)

// Seen is the set of transactions whose events a reader has seen. It contains all transactions up to Upto, except for the few that were
// still open when the reader last read. With this set, a reader of new events receives each event exactly once, regardless of the order in
// which transactions commit, and never waits for open transactions or reads anything twice. Upto is a transaction that has written an
// event, so a server crash cannot undo it.
type Seen struct {
	Upto uint64
	Open []uint64
}

// Has reports whether the events written by a transaction have been seen.
func (s Seen) Has(xid uint64) bool { return xid <= s.Upto && !slices.Contains(s.Open, xid) }

// With returns the union of s and t.
func (s Seen) With(t Seen) Seen {
	both := Seen{Upto: max(s.Upto, t.Upto)}
	for _, xid := range slices.Concat(s.Open, t.Open) {
		if !s.Has(xid) && !t.Has(xid) && !slices.Contains(both.Open, xid) {
			both.Open = append(both.Open, xid)
		}
	}
	return both
}

// at returns the set of transactions that are visible in a snapshot, which has the form xmin:xmax:xip,…. upto is the latest transaction
// that wrote events.
func (s Seen) at(snapshot string, upto uint64) (Seen, error) {
	now := Seen{Upto: max(s.Upto, upto)}
	parts := strings.Split(snapshot, ":")
	if len(parts) != 3 {
		return s, fmt.Errorf("snapshot %q: want three parts", snapshot)
	}
	for text := range strings.SplitSeq(parts[2], ",") {
		if text == "" {
			continue
		}
		xid, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return s, fmt.Errorf("snapshot %q: %w", snapshot, err)
		}
		if xid <= now.Upto {
			now.Open = append(now.Open, xid)
		}
	}
	return now, nil
}

// String formats s as numbers separated by underscores, which need no escaping in a URL.
func (s Seen) String() string {
	var b strings.Builder
	b.WriteString(strconv.FormatUint(s.Upto, 10))
	for _, xid := range s.Open {
		b.WriteString("_" + strconv.FormatUint(xid, 10))
	}
	return b.String()
}

// maxOpen limits the number of open transactions in a cursor. PostgreSQL servers typically have hundreds of connections, and rarely
// thousands.
const maxOpen = 10_000

// ParseSeen parses the output of [Seen.String]. It returns [job.ErrInvalid] if the text is invalid.
func ParseSeen(text string) (s Seen, err error) {
	for i, part := range strings.Split(text, "_") {
		xid, err := strconv.ParseUint(part, 10, 64)
		switch {
		case err != nil || i > maxOpen || i > 0 && xid > s.Upto:
			return Seen{}, fmt.Errorf("%w: transactions %.100q", job.ErrInvalid, text)
		case i == 0:
			s.Upto = xid
		default:
			s.Open = append(s.Open, xid)
		}
	}
	return s, nil
}

// args returns s as two statement arguments.
func (s Seen) args() (upto string, open []string) {
	open = make([]string, len(s.Open))
	for i, xid := range s.Open {
		open[i] = strconv.FormatUint(xid, 10)
	}
	return strconv.FormatUint(s.Upto, 10), open
}
