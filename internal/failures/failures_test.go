package failures

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/job"
)

func TestErrorTextNormalization(t *testing.T) {
	for in, want := range map[string]string{
		"connection refused":  "connection refused",
		"user 42 not found":   "user # not found",
		"user_42 and job7":    "user_# and job#",
		"timeout after 1.5s":  "timeout after #",
		"timeout after 1m30s": "timeout after #",
		"dial tcp 10.0.0.1:5432: connect: connection refused": "dial tcp #: connect: connection refused",
		"at 2025-01-31T08:00:00.123Z":                         "at #",
		"at 2025-01-31 08:00:00 +0100":                        "at #",
		"order 3f2a9c1e-aaaa-4bbb-8ccc-0123456789ab is gone":  "order # is gone",
		"commit c9354248 is missing":                          "commit # is missing",
		"at 0xdeadbeef":                                       "at #",
		"key 01ARZ3NDEKTSV4RRFFQ69G5FAV":                      "key #",
		`open "/tmp/a.csv": no such file`:                     `open "…": no such file`,
		`open "/tmp/\"a\".csv": no such file`:                 `open "…": no such file`,
		"unknown column 'total' in `sales`":                   "unknown column '…' in `…`",
		"can't open 'users' list' now":                        "can't open '…' list' now",
		"don't":                                               "don't",
		`truncated "abc`:                                      `truncated "…"`,
		"rows 1, 2, 3 failed":                                 "rows # failed",
		"line 48,213: 11 columns":                             "line #: # columns",
		"rows [4 5] failed":                                   "rows [#] failed",
		"got -5, want +7":                                     "got #, want #",
		"job #5 failed":                                       "job # failed",
		"panic: index out of range [5] with length 3\ngoroutine 12 [running]:": "panic: index out of range [#] with length #",
		"\n  first line\tis   this \n second":                                  "first line is this",
		"naïve façade 12€":                                                     "naïve façade #€",
		"":                                                                     "",
	} {
		t.Run(in, func(t *testing.T) {
			is := is.New(t)
			is.Equal(Normalize(in), want)
			is.Equal(Normalize(want), want) // Normalize is idempotent
		})
	}
}

func FuzzNormalize(f *testing.F) {
	for _, seed := range []string{"", "'", `"\`, "a'b'c", "#, #", "-5", "\xff\x80", strings.Repeat("é1", 400)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := Normalize(text)
		if utf8.ValidString(text) && !utf8.ValidString(got) {
			t.Errorf("%q becomes %q, which is not UTF-8", text, got)
		}
		if strings.ContainsAny(got, "0123456789\n") {
			t.Errorf("%q keeps a variable part: %q", text, got)
		}
		if len(got) > 3*MaxBytes {
			t.Errorf("%d bytes become %d", len(text), len(got))
		}
	})
}

func TestFailureGrouping(t *testing.T) {
	is := is.New(t)
	now := time.Date(2025, 1, 31, 12, 0, 0, 0, time.UTC)
	var jobs []Job
	for i := range 10 {
		jobs = append(jobs, Job{ID: int64(100 + i), Kind: "a", FailedAt: now.Add(-time.Duration(i) * time.Hour), Error: fmt.Sprint("row ", i, " is bad"), Class: job.ClassError})
	}
	jobs = append(jobs, Job{ID: 7, Kind: "b", FailedAt: now.Add(-10 * time.Hour), Error: "row 1 is bad"})
	l := New(jobs, now.Add(-24*time.Hour), now, true)
	is.Equal(len(l.Groups), 2)
	g := l.Groups[0]
	is.Equal([]any{g.Kind, g.Error, g.Example, g.Jobs, g.Newest}, []any{"a", "row # is bad", "row 0 is bad", 10, int64(100)})
	is.True(g.First.Equal(now.Add(-9 * time.Hour)))
	is.True(g.Last.Equal(now))
	is.Equal(g.Trend[15:], []int{1, 1, 1, 1, 1, 1, 1, 1, 2}) // one failure per hour; the last part includes its end
	is.Equal(l.Groups[1].Kind, "b")
	_, members, found := l.Of(g.ID)
	is.True(found)
	is.Equal(members, jobs[:10])
	_, _, found = l.Of("other")
	is.True(!found)
	is.Equal(len(l.OfKind("b").Groups), 1)
	is.Equal(l.OfKind("b").Jobs, 1)
}

func TestFailureSetMembers(t *testing.T) {
	is := is.New(t)
	now := time.Now().Truncate(time.Microsecond)
	jobs := []Job{{ID: 3, Kind: "k", FailedAt: now, Error: "e 1"}, {ID: 9, Kind: "k", FailedAt: now.Add(-time.Second), Error: "e 2"}, {ID: 4, Kind: "k", FailedAt: now.Add(-time.Minute), Error: "other"}}
	s, err := ParseSet(New(jobs, now.Add(-time.Hour), now, true).Groups[0].Set)
	is.NoErr(err)
	is.True(s.First.Equal(now.Add(-time.Second)))
	is.True(s.Last.Equal(now))
	ids, err := s.IDs(jobs)
	is.NoErr(err)
	is.Equal(ids, []int64{3, 9})
	more := append(slices.Clone(jobs), Job{ID: 5, Kind: "k", FailedAt: now, Error: "e 3"})
	again := slices.Clone(jobs)
	again[0].FailedAt = now.Add(time.Second)
	for what, changed := range map[string][]Job{"another job": more, "a job is missing": jobs[1:], "a job failed again": again, "none": nil} {
		t.Run(what, func(t *testing.T) {
			_, err := s.IDs(changed)
			is.New(t).True(errors.Is(err, job.ErrConflict))
		})
	}
	for _, wrong := range []string{"", "a.1.2", "a.b.c.d", "a.1.2.c.d", "a.01.2.c", "a.2.1.c", "a.-1.2.c", "a.1.9223372036854775807.c"} {
		_, err := ParseSet(wrong)
		is.True(errors.Is(err, job.ErrInvalid))
	}
}
