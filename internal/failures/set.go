package failures

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// Set identifies exactly those jobs that were in a [Group] when the group was read. A retry of the set therefore affects neither jobs that
// failed later nor jobs that have failed again.
type Set struct {
	Group       string
	First, Last time.Time // when the first and the last of its jobs failed

	digest string
}

func setOf(id string, jobs []Job) Set {
	return Set{id, jobs[len(jobs)-1].FailedAt, jobs[0].FailedAt, digest(jobs)}
}

// String formats the set for [ParseSet].
func (s Set) String() string {
	return fmt.Sprintf("%s.%d.%d.%s", s.Group, s.First.UnixMicro(), s.Last.UnixMicro(), s.digest)
}

// lastMicro is later than any job's time, but within the range that PostgreSQL can store.
const lastMicro = 1e18

// ParseSet parses a set formatted by [Set.String]. It returns [job.ErrInvalid] if the text is not a set.
func ParseSet(text string) (s Set, err error) {
	parts := strings.Split(text, ".")
	if len(parts) == 4 {
		first, err1 := strconv.ParseInt(parts[1], 10, 64)
		last, err2 := strconv.ParseInt(parts[2], 10, 64)
		if s = (Set{parts[0], time.UnixMicro(first), time.UnixMicro(last), parts[3]}); err1 == nil && err2 == nil && 0 <= first && first <= last && last < lastMicro && s.String() == text {
			return s, nil
		}
	}
	return s, fmt.Errorf("%w: failures %.100q: want the set value of a failure group", job.ErrInvalid, text)
}

// IDs returns the set's job ids in ascending order. The jobs argument must hold all jobs that failed from First to Last. If the group's
// jobs no longer match the set, IDs returns [job.ErrConflict].
func (s Set) IDs(jobs []Job) ([]int64, error) {
	found := List{jobs: jobs, ids: map[pair]string{}}.members(s.Group)
	if len(found) == 0 || digest(found) != s.digest {
		return nil, fmt.Errorf("%w: the group of failures", job.ErrConflict)
	}
	ids := make([]int64, len(found))
	for i, failed := range found {
		ids[i] = failed.ID
	}
	slices.Sort(ids)
	return ids, nil
}
