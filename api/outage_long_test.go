//go:build long

package api_test

import (
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

func TestStreamsAcrossDatabaseCrash(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	server := pgtest.Server(t)
	pgtest.Migrate(t, server.URL())
	h := newHostOn(t, pgtest.Connect(t, server.URL()), api.Options{})
	id := h.submit(`{"kind":"wait"}`)
	h.until(id, job.Running)
	all, one, pipeline := h.watch("/events/stream"), h.watch("/jobs/"+id+"/stream"), h.watch("/pipelines/"+id+"/stream")
	all.must(t)
	one.until(t, "job.claimed")
	pipeline.until(t, "job.claimed")
	is.NoErr(server.Restart(t.Context(), "immediate"))
	pgtest.Wait(t, "the job is cancelled", func() bool { return h.send("POST", "/jobs/"+id+"/cancel", "").status < 300 })
	_, events := named(t, one.rest(t)) // the same streams continue to the end
	number := 2
	for _, e := range events[:len(events)-1] {
		number++
		is.Equal(*e.EventNo, number)
	}
	is.Equal(events[len(events)-2].To, job.Cancelled)
	names, _ := named(t, pipeline.rest(t))
	is.Equal(names[len(names)-1], "end")
	is.Equal(len(names), len(events))
	all.until(t, "job.cancelled")
}
