package api_test

import (
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

func TestJobStreamUntilEnd(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{})
	id := h.submit(`{"kind":"wait"}`)
	h.until(id, job.Running)
	s := h.watch("/jobs/" + id + "/stream")
	is.Equal(s.header.Get("Content-Type"), "text/event-stream")
	first := s.must(t)
	is.Equal(first.event, "snapshot")
	var j map[string]any
	first.of(t, &j)
	is.Equal(j["id"], id) // the snapshot equals the response to GET
	is.Equal(j["state"], "running")
	before, _ := named(t, s.until(t, "job.claimed"))
	is.Equal(before, []string{"job.enqueued", "job.claimed"})
	h.send("POST", "/jobs/"+id+"/cancel", "")
	rest := s.rest(t) // the server closes the stream
	names, events := named(t, rest)
	is.Equal(names[len(names)-1], "end")
	is.Equal(rest[len(rest)-1].data, `{"state":"cancelled"}`)
	is.Equal(events[len(events)-2].To, job.Cancelled)

	again := h.watch("/jobs/"+id+"/stream", "Last-Event-ID", rest[len(rest)-2].id)
	names, _ = named(t, again.rest(t))
	is.Equal(names, []string{"snapshot", "end"}) // no events after the cursor
	names, _ = named(t, h.watch("/jobs/"+id+"/stream?after=now").rest(t))
	is.Equal(names, []string{"snapshot", "end"})
	list := h.send("GET", "/jobs/"+id+"/events", "").body["events"].([]any)
	after := list[0].(map[string]any)["cursor"].(string)
	names, _ = named(t, h.watch("/jobs/"+id+"/stream?after="+after).rest(t))
	is.Equal(len(names), len(list)+1) // cursors from lists are accepted too
}

// A client can watch a pipeline's live stream on any pod and resume it on another.
func TestPipelineStreamAcrossPods(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	here, there := newHostOn(t, pool, api.Options{LoopbackOnly: true}), newHostOn(t, pool, api.Options{})
	is.Equal(here.send("GET", "/pipelines/999/stream", "").status, http.StatusNotFound) // rejected before the stream starts
	is.Equal(here.send("GET", "/pipelines/abc/stream", "").status, http.StatusNotFound)
	is.Equal(here.send("GET", "/jobs/999/stream", "").status, http.StatusNotFound)
	is.Equal(here.send("GET", "/events/stream", "", "Host", "evil.example").status, http.StatusForbidden)
	is.Equal(here.send("GET", "/events/stream?after=garbage", "").status, http.StatusBadRequest)

	id := there.submit(`{"kind":"echo","delay":3600,"chain":[{"kind":"echo"},{"kind":"echo"}]}`)
	s := here.watch("/pipelines/" + id + "/stream")
	first := s.must(t)
	is.Equal(first.event, "snapshot")
	var p map[string]any
	first.of(t, &p)
	is.Equal(p["status"], "running")
	is.Equal(s.must(t).event, "job.enqueued")
	asked := time.Now()
	is.Equal(there.send("POST", "/jobs/"+id+"/cancel", "").status, http.StatusOK)
	is.Equal(s.must(t).event, "job.cancelled")
	is.True(time.Since(asked) < 4*time.Second) // sooner than the 5 s fallback check, even though another pod made the change
	rest := s.rest(t)
	is.Equal(rest[0].data, `{"status":"cancelled"}`)

	id = there.submit(`{"kind":"echo","args":{"n":1},"chain":[{"kind":"echo"},{"kind":"echo"}]}`)
	list := here.watch("/pipelines/" + id + "/stream").rest(t)
	names, events := named(t, list)
	is.Equal(names[0], "snapshot")
	is.Equal(list[len(list)-1].data, `{"status":"succeeded"}`)
	steps, ends := map[int64]int{}, 0
	for _, e := range events[1 : len(events)-1] {
		is.Equal(*e.EventNo, steps[*e.Job]+1) // each job's events are in order, without a gap
		steps[*e.Job]++
		if e.To == job.Succeeded {
			ends++
		}
	}
	is.Equal(len(steps), 3)
	is.Equal(ends, 3)
	for cut := range list[:len(list)-1] { // another pod can resume after any event, without a gap or a duplicate
		more := there.watch("/pipelines/"+id+"/stream", "Last-Event-ID", list[cut].id).rest(t)
		seen := map[string]bool{}
		for _, f := range slices.Concat(list[1:cut+1], more[1:]) {
			is.True(!seen[f.data])
			seen[f.data] = true
		}
		is.Equal(len(seen), len(list)-1)
	}
}

func TestDisconnectedStreamClients(t *testing.T) {
	is := is.New(t) // not parallel, because it counts goroutines and connections
	pool := pgtest.Pool(t)
	h := newHostOn(t, pool, api.Options{Streams: api.StreamOptions{KeepAlive: 50 * time.Millisecond}})
	connections := func() (n int) {
		is.NoErr(pool.QueryRow(t.Context(), `select count(*) from pg_stat_activity where datname = current_database()`).Scan(&n))
		return n
	}
	id := h.submit(`{"kind":"wait"}`)
	h.until(id, job.Running)
	one := h.watch("/jobs/" + id + "/stream")
	one.until(t, "job.claimed")
	one.leave()
	pgtest.Wait(t, "the first one has left", func() bool { return serving() == 0 })
	connected := connections()
	var all []*stream
	for i := range 60 {
		path := []string{"/jobs/" + id + "/stream", "/pipelines/" + id + "/stream", "/events/stream"}[i%3]
		s := h.watch(path)
		s.must(t)
		all = append(all, s)
	}
	is.Equal(sum(t, h, "trapeze_streams"), 60.0)
	pgtest.Wait(t, "a goroutine serves each, and the tail reads", func() bool { return serving() >= 61 })
	is.True(connections() <= connected+5) // pool connections only; one connection per client would add 60
	for len(all[2].comments) < 2 {        // an idle stream sends keep-alive comments
		_, err := all[2].lines.Peek(1)
		is.NoErr(err)
		line, err := all[2].lines.ReadString('\n')
		is.NoErr(err)
		if strings.HasPrefix(line, ":") {
			all[2].comments = append(all[2].comments, line)
		}
	}
	for _, s := range all {
		s.leave()
	}
	pgtest.Wait(t, "all clients have disconnected", func() bool { return serving() == 0 })
	is.Equal(sum(t, h, "trapeze_streams"), 0.0)
}

// serving counts the goroutines that serve streams or read data for them.
func serving() (n int) {
	stacks := make([]byte, 16<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for one := range strings.SplitSeq(string(stacks), "\n\n") {
		if strings.Contains(one, "/internal/feed.") || strings.Contains(one, "/api.serveStream") {
			n++
		}
	}
	return n
}

// sum returns the value of one of a pod's metrics.
func sum(t *testing.T, h *host, name string) float64 {
	t.Helper()
	for line := range strings.Lines(h.send("GET", "/metrics", "").text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

func TestOpenTransactionDelaysGlobalStream(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	h := newHostOn(t, pool, api.Options{})
	all := h.watch("/events/stream")
	is.Equal(all.must(t).event, "snapshot")
	late := h.submit(`{"kind":"echo","delay":3600}`)
	all.until(t, "job.enqueued")

	tx, err := pool.Begin(t.Context())
	is.NoErr(err)
	defer tx.Rollback(t.Context())
	_, err = tx.Exec(t.Context(), `with u as (update trapeze.parked set event_no = event_no + 1 where id = $1 returning id, event_no)
		insert into trapeze.job_events (job, event_no, from_state, to_state, event) select id, event_no, 'pending', 'pending', 'late' from u`, late)
	is.NoErr(err)
	of := h.watch("/jobs/" + late + "/stream?after=now")
	is.Equal(of.must(t).event, "snapshot")
	id := h.submit(`{"kind":"echo","chain":[{"kind":"echo"}]}`)
	names, _ := named(t, h.watch("/pipelines/"+id+"/stream").rest(t)) // the pipeline begins and ends while the transaction is open
	is.Equal(names[len(names)-1], "end")
	pgtest.Wait(t, "the lag is reported", func() bool { return sum(t, h, "trapeze_feed_lag_seconds") > 0 })

	is.NoErr(tx.Commit(t.Context()))
	is.Equal(of.must(t).event, "late") // the job's stream includes the late event
	seen := map[string]bool{}
	var last job.Event
	for last.Job == nil || last.To != job.Succeeded || len(seen) < 7 { // two jobs with three events each, and the late event
		f := all.must(t)
		is.True(!seen[f.id]) // no event is sent twice
		seen[f.id] = true
		f.of(t, &last)
	}
	is.Equal(len(seen), 7)
}

func TestCursorsOfLaneEvents(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newIdleHost(t, api.Options{})
	all := h.watch("/events/stream")
	is.Equal(all.must(t).event, "snapshot")
	for _, path := range []string{"lanes/default/drain", "lanes/default/undrain", "pause"} {
		is.Equal(h.send("POST", "/admin/workers/"+path, "").status, http.StatusOK)
	}
	before := all.until(t, "lane.drained")
	drained := before[len(before)-1]
	var told job.Event
	drained.of(t, &told)
	is.True(strings.HasSuffix(drained.id, told.Cursor)) // the cursor in the event matches the stream ID
	again := h.watch("/events/stream", "Last-Event-ID", drained.id)
	is.Equal(again.must(t).event, "snapshot")
	is.Equal(again.must(t).event, "lane.undrained") // the drain is not repeated
	is.Equal(again.must(t).event, "queue_state.paused")
}

func TestUnusableStreamCursor(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	h := newHostOn(t, pool, api.Options{})
	id := h.submit(`{"kind":"echo","delay":3600}`)
	cursors := map[string]string{}
	for _, path := range []string{"/jobs/" + id + "/stream", "/pipelines/" + id + "/stream", "/events/stream?after=0"} {
		s := h.watch(path)
		is.Equal(s.must(t).event, "snapshot")
		cursors[path] = s.must(t).id
		s.leave()
	}
	for path, cursor := range cursors {
		epoch, place, _ := strings.Cut(cursor, "-")
		future := map[byte]string{'j': "-j9", 'p': "-p99999", 'g': "-g99999.1.1"}[place[0]]
		for _, bad := range []string{"00000000-" + place, epoch + future} {
			s := h.watch(path, "Last-Event-ID", bad)
			is.Equal(s.must(t).event, "reset")
			is.Equal(s.must(t).event, "snapshot")
			s.leave()
		}
		for _, garbage := range []string{"x", epoch + "-", epoch + "-" + place + "x", strings.Repeat("9", 1000)} {
			is.Equal(h.send("GET", path, "", "Last-Event-ID", garbage).status, http.StatusBadRequest)
		}
	}
	pgtest.Wait(t, "all clients have disconnected", func() bool { return sum(t, h, "trapeze_streams") == 0 })
	// A dump does not include the contents of the materialized view, so a restore refreshes the view.
	_, err := pool.Exec(t.Context(), `refresh materialized view trapeze.feed_epoch`)
	is.NoErr(err)
	for path, cursor := range cursors {
		s := h.watch(path, "Last-Event-ID", cursor)
		is.Equal(s.must(t).event, "reset")
	}
}

func TestStreamCursorOfPrunedEvents(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	h := newHostOn(t, pool, api.Options{})
	waiting, id := h.submit(`{"kind":"echo","delay":3600}`), h.submit(`{"kind":"echo"}`)
	h.until(id, job.Succeeded)
	cursors := map[string]string{}
	for _, path := range []string{"/jobs/" + id + "/stream", "/pipelines/" + waiting + "/stream", "/events/stream?after=0"} {
		list := h.watch(path).until(t, "job.enqueued")
		cursors[path] = list[len(list)-1].id
	}
	_, err := pool.Exec(t.Context(), `delete from trapeze.job_events where event <> 'job.succeeded'`)
	is.NoErr(err)
	for path, cursor := range cursors {
		s := h.watch(path, "Last-Event-ID", cursor)
		is.Equal(s.must(t).event, "reset") // the events between the cursor and now are gone
		is.Equal(s.must(t).event, "snapshot")
	}
}

func TestProgressInJobStream(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{})
	id := h.submit(`{"kind":"slow"}`)
	s := h.watch("/jobs/" + id + "/stream")
	list := s.until(t, "progress")
	note := list[len(list)-1]
	is.Equal(note.id, "") // progress is not part of the history
	is.Equal(note.data, `{"job":"`+id+`","done":1,"total":2,"message":null}`)
	h.send("POST", "/jobs/"+id+"/cancel", "")
	s.rest(t)
}
