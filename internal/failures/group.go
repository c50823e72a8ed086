package failures

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// Job is a failed job.
type Job struct {
	ID       int64          `json:"id,string"`
	Kind     string         `json:"kind"`
	Subject  string         `json:"subject"`
	Attempt  int            `json:"attempt"`
	FailedAt time.Time      `json:"failed_at"`
	Class    job.ErrorClass `json:"error_class"`
	Error    string         `json:"error"` // the first line; see [Line]
}

// Group describes a kind's failed jobs whose errors are the same after normalization.
type Group struct {
	ID      string         `json:"id"` // depends only on the kind and the normalized error
	Kind    string         `json:"kind"`
	Error   string         `json:"error"`       // normalized; see [Normalize]
	Example string         `json:"example"`     // the first line of the newest error
	Class   job.ErrorClass `json:"error_class"` // class of the newest error
	Jobs    int            `json:"jobs"`
	Newest  int64          `json:"newest,string"` // the job that failed last
	First   time.Time      `json:"first_failed_at"`
	Last    time.Time      `json:"last_failed_at"`
	Trend   []int          `json:"trend"` // number of failures in each of [Parts] equal parts of the period
	Set     string         `json:"set"`   // identifies exactly these jobs (see [Set]); empty if there are none
	// Retrying is the number of jobs whose latest attempt failed with this error and that are waiting for their next attempt. They do not
	// count toward Jobs. If a group has no other jobs, Example, Class, Newest, First and Last describe these.
	Retrying int `json:"retrying"`
}

// Parts is the number of parts into which a trend divides the period.
const Parts = 24

// List holds the jobs that failed in a period, in groups sorted by size, largest first.
type List struct {
	Groups   []Group   `json:"failures"`
	Jobs     int       `json:"jobs"`     // number of jobs in all groups
	Since    time.Time `json:"since"`    // start of the period that was read
	Until    time.Time `json:"until"`    // the time of the read
	Complete bool      `json:"complete"` // false if more jobs failed than one request reads, which then moves Since forward

	Retrying int  `json:"retrying"`          // number of jobs in all groups that are waiting for their next attempt
	AllRead  bool `json:"retrying_complete"` // false if more jobs are waiting than one request reads

	jobs, retrying []Job
	ids            map[pair]string
}

// pair is a kind and an error.
type pair struct{ kind, err string }

// New groups failed jobs. The jobs must be sorted with the latest failure first.
func New(jobs []Job, since, until time.Time, complete bool) List {
	l := List{Jobs: len(jobs), Since: since, Until: until, Complete: complete, jobs: jobs, ids: map[pair]string{}}
	of := map[string][]Job{}
	for _, failed := range jobs {
		id := l.groupOf(failed)
		of[id] = append(of[id], failed)
	}
	for id, members := range of {
		g := l.group(id, members)
		g.Jobs, g.Trend, g.Set = len(members), l.trend(members), setOf(id, members).String()
		l.Groups = append(l.Groups, g)
	}
	return l.sorted()
}

// AddRetrying adds jobs whose latest attempt failed and that are waiting for their next attempt, latest failure first. If complete is set,
// there are no others.
func (l List) AddRetrying(retrying []Job, complete bool) List {
	l.Retrying, l.AllRead, l.retrying = len(retrying), complete, retrying
	of := map[string][]Job{}
	for _, failed := range retrying {
		id := l.groupOf(failed)
		of[id] = append(of[id], failed)
	}
	l.Groups = slices.Clone(l.Groups)
	for id, members := range of {
		at := slices.IndexFunc(l.Groups, func(g Group) bool { return g.ID == id })
		if at < 0 {
			g := l.group(id, members)
			g.Trend = l.trend(nil)
			l.Groups, at = append(l.Groups, g), len(l.Groups)
		}
		l.Groups[at].Retrying = len(members)
	}
	return l.sorted()
}

func (l List) sorted() List {
	slices.SortFunc(l.Groups, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Jobs, a.Jobs), cmp.Compare(b.Retrying, a.Retrying), b.Last.Compare(a.Last), cmp.Compare(a.ID, b.ID))
	})
	return l
}

func (l List) group(id string, members []Job) Group {
	newest := members[0]
	return Group{ID: id, Kind: newest.Kind, Error: Normalize(newest.Error), Example: newest.Error, Class: newest.Class, Newest: newest.ID,
		First: members[len(members)-1].FailedAt, Last: newest.FailedAt}
}

func (l List) trend(members []Job) []int {
	trend, span := make([]int, Parts), max(l.Until.Sub(l.Since), 1)
	for _, failed := range members {
		part := int(float64(failed.FailedAt.Sub(l.Since)) / float64(span) * Parts)
		trend[min(max(part, 0), Parts-1)]++
	}
	return trend
}

// groupOf returns the id of a job's group, which it caches by kind and error, because most errors occur repeatedly.
func (l List) groupOf(failed Job) string {
	key := pair{failed.Kind, failed.Error}
	id, ok := l.ids[key]
	if !ok {
		id = ID(failed.Kind, failed.Error)
		l.ids[key] = id
	}
	return id
}

// ID returns the group id for a kind and an error.
func ID(kind, text string) string {
	sum := sha256.Sum256([]byte(kind + "\x00" + Normalize(text)))
	return hex.EncodeToString(sum[:8])
}

// Of returns a group and its failed jobs, latest failure first. It returns false if the list has no such group.
func (l List) Of(id string) (g Group, jobs []Job, found bool) {
	at := slices.IndexFunc(l.Groups, func(g Group) bool { return g.ID == id })
	if at < 0 {
		return g, nil, false
	}
	return l.Groups[at], l.members(id), true
}

func (l List) members(id string) (jobs []Job) {
	for _, failed := range l.jobs {
		if l.groupOf(failed) == id {
			jobs = append(jobs, failed)
		}
	}
	return jobs
}

// OfKind returns a list of the jobs of a single kind.
func (l List) OfKind(kind string) List {
	others := func(failed Job) bool { return failed.Kind != kind }
	return New(slices.DeleteFunc(slices.Clone(l.jobs), others), l.Since, l.Until, l.Complete).
		AddRetrying(slices.DeleteFunc(slices.Clone(l.retrying), others), l.AllRead)
}

// digest returns a hash of the jobs' ids and the times at which they failed.
func digest(jobs []Job) string {
	jobs = slices.SortedFunc(slices.Values(jobs), func(a, b Job) int { return cmp.Compare(a.ID, b.ID) })
	h := sha256.New()
	for _, failed := range jobs {
		_ = binary.Write(h, binary.BigEndian, []int64{failed.ID, failed.FailedAt.UnixMicro()}) // a hash returns no error
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}
