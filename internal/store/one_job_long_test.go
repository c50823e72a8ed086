//go:build long

package store

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestSingleJobInsertRows(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	compared, passed := 0, 0
	scenes(func(c scene) {
		if c.subject || c.unique || c.cancelled || c.fence {
			return // this combination cannot occur when a job is inserted
		}
		tx, err := pool.Begin(t.Context())
		is.NoErr(err)
		defer func() { is.NoErr(tx.Rollback(t.Context())) }()
		podID := c.rows(t, tx)
		n := c.newJob()
		n.Approved = c.approval && c.next
		free := time.Unix(0, 0) // stands for a submission in the host's transaction
		for _, since := range []time.Time{{}, time.Now().Add(-time.Hour), time.Now().Add(time.Hour), free} {
			one, all := enqueueOneSQL, enqueueSQL
			by := append(newJobs.values(enqueueOneSQL, n), args{{"pod", podID}, {"ahead", int4(-n.Priority)}}...)
			byAll := append(newJobs.arrays(enqueueSQL, []*NewJob{n}), args{{"pod", podID}}...)
			switch {
			case since.Equal(free):
				if n.Starts {
					continue // a job in the host's transaction cannot request to start on insert
				}
				one, all, by = enqueueOneFreeSQL, enqueueFreeSQL, append(newJobs.values(enqueueOneFreeSQL, n), args{{"pod", podID}}...)
			default:
				_, _, ranges := readRanges([]Mark{{Rank: -n.Priority, Since: since}})
				by, byAll = append(by, ranges...), append(byAll, ranges...)
			}
			answer, rows := written(t, tx, one, by)
			wanted, rowsWanted := written(t, tx, all, byAll)
			if c.approval && !n.Approved {
				passed++
				is.Equal(answer, "[]")
				continue
			}
			compared++
			if place := func(s string) string { return s[:min(len(s), 20)] }; place(answer) != place(wanted) || rows != rowsWanted {
				t.Fatalf("%+v:\n%s\n%s\nwant\n%s\n%s", c, answer, rows, wanted, rowsWanted)
			}
		}
	})
	is.True(compared > 100 && passed > 50)
}
