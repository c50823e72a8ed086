package api_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

func TestStalledStreamClient(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	h := newHostOn(t, pool, api.Options{Streams: api.StreamOptions{WriteWithin: 300 * time.Millisecond}})
	id := h.submit(`{"kind":"echo","delay":3600}`)
	address := strings.TrimPrefix(strings.TrimSuffix(h.url, "/trapeze"), "http://")
	conn, err := net.Dial("tcp", address)
	is.NoErr(err)
	defer conn.Close()
	is.NoErr(conn.(*net.TCPConn).SetReadBuffer(4 << 10))
	_, err = io.WriteString(conn, "GET /trapeze/jobs/"+id+"/stream HTTP/1.1\r\nHost: x\r\n\r\n")
	is.NoErr(err)
	pgtest.Wait(t, "it has its stream", func() bool { return sum(t, h, "trapeze_streams") == 1 })
	other := h.watch("/jobs/" + id + "/stream")
	is.Equal(other.must(t).event, "snapshot")
	is.Equal(other.must(t).event, "job.enqueued")
	const loud = 3000
	_, err = pool.Exec(t.Context(), `with u as (update trapeze.parked set event_no = event_no + $2::int where id = $1::text::bigint returning id)
		insert into trapeze.job_events (job, event_no, from_state, to_state, event, message)
		select u.id, 1 + n, 'pending', 'pending', 'loud', repeat('x', 1000) from u, generate_series(1, $2::int) n`, id, loud)
	is.NoErr(err)
	for range loud {
		is.Equal(other.must(t).event, "loud") // the other reader still receives everything
	}
	pgtest.Wait(t, "the slow client is dropped", func() bool {
		return sum(t, h, "trapeze_streams_dropped_total") == 1 && sum(t, h, "trapeze_streams") == 1
	})
}

func TestStreamsOfStoppingPod(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{})
	id := h.submit(`{"kind":"wait"}`)
	h.until(id, job.Running)
	all, one := h.watch("/events/stream"), h.watch("/jobs/"+id+"/stream")
	all.must(t)
	one.until(t, "job.claimed")
	h.stop()
	all.rest(t)
	one.rest(t)
	is.Equal(all.comments, []string{"this pod is stopping"})
	is.Equal(one.comments, []string{"this pod is stopping"})
	a := h.send("GET", "/events/stream", "")
	is.Equal(a.status, http.StatusServiceUnavailable)
	is.Equal(a.body["code"], "unavailable")
}

func TestStreamLimitsAndServerTimeouts(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHostWith(t, pgtest.Pool(t), api.Options{Authenticate: byHeader("operator"), Streams: api.StreamOptions{Most: 3, MostEach: 2, KeepAlive: 20 * time.Millisecond}},
		func(s *http.Server) { s.ReadTimeout, s.WriteTimeout = 200*time.Millisecond, 200*time.Millisecond })
	first := h.watch("/events/stream", "X-User", "ann")
	h.watch("/events/stream", "X-User", "ann")
	a := h.send("GET", "/events/stream", "", "X-User", "ann")
	is.Equal(a.status, http.StatusTooManyRequests)
	is.Equal(a.body["code"], "rate_limited")
	is.True(a.header.Get("Retry-After") != "")
	h.watch("/events/stream", "X-User", "bob")
	is.Equal(h.send("GET", "/events/stream", "", "X-User", "eve").status, http.StatusServiceUnavailable)
	for began := time.Now(); time.Since(began) < 600*time.Millisecond; { // three times the server's timeouts
		_, err := first.lines.ReadString('\n')
		is.NoErr(err)
	}
	first.leave()
	pgtest.Wait(t, "there is room again", func() bool {
		s, err := h.watching("/events/stream", "X-User", "eve")
		is.NoErr(err)
		defer s.leave()
		return s.status == http.StatusOK
	})
}
