package api

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/runner"
)

func TestWrongTokenAuditCounts(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	r, err := runner.New(pgtest.Pool(t), runner.Options{})
	is.NoErr(err)
	defer r.Close()
	st := inside.Of(r).Store
	w := newWrongTokens(st)
	is.Equal(w.interval, time.Minute)
	w.interval = 300 * time.Millisecond
	const requests = 1000
	for n := range requests {
		w.add(fmt.Sprintf("10.0.0.%d", n%(2*mostSources)))
	}
	var rows []admin.AuditRow
	var counted int64
	pgtest.Wait(t, "every request is counted", func() bool {
		rows, err = admin.AuditTrail(t.Context(), st, admin.AuditFilter{Actor: "anonymous"})
		is.NoErr(err)
		counted = 0
		for _, row := range rows {
			var count wrongCount
			is.NoErr(json.Unmarshal(row.After, &count))
			is.True(!row.Allowed && len(count.From) <= mostSources)
			counted += count.Requests
		}
		return counted == requests
	})
	is.True(len(rows) <= 4) // the entries do not grow with the number of requests
	pgtest.Wait(t, "it rests", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return !w.running
	})
	w.add("10.0.0.1")
	rows, err = admin.AuditTrail(t.Context(), st, admin.AuditFilter{Actor: "anonymous"})
	is.NoErr(err)
	is.True(len(rows) >= 3) // after a quiet period, the next request is audited immediately
}

func TestWrongTokenCountFailedAudit(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r, err := runner.New(pool, runner.Options{})
	is.NoErr(err)
	defer r.Close()
	st := inside.Of(r).Store
	w := newWrongTokens(st)
	w.interval = 100 * time.Millisecond
	_, err = pool.Exec(t.Context(), `alter table trapeze.audit add constraint broken check (false) not valid`)
	is.NoErr(err)
	for range 3 {
		w.add("10.0.0.1")
	}
	_, err = pool.Exec(t.Context(), `alter table trapeze.audit drop constraint broken`)
	is.NoErr(err)
	pgtest.Wait(t, "every request is counted", func() bool {
		rows, err := admin.AuditTrail(t.Context(), st, admin.AuditFilter{Actor: "anonymous"})
		is.NoErr(err)
		var total wrongCount
		for _, row := range rows {
			var count wrongCount
			is.NoErr(json.Unmarshal(row.After, &count))
			total.merge(count)
		}
		return total.Requests == 3 && total.From["10.0.0.1"] == 3
	})
}
