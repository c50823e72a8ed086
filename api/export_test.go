package api_test

import (
	"bufio"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

func TestExportLineFormat(t *testing.T) { // not parallel, because a process allows only two concurrent exports
	is := is.New(t)
	h := newHost(t, api.Options{})
	id := h.submit(`{"kind":"echo","args":{"a":"<b>"}}`)
	h.until(id, job.Succeeded)
	jobs := h.send("GET", "/admin/export/jobs", "")
	is.Equal(jobs.status, http.StatusOK)
	is.Equal(jobs.header.Get("Content-Type"), "application/x-ndjson")
	is.Equal(strings.Count(jobs.text, "\n"), 1)
	is.True(strings.Contains(jobs.text, `{"a":"<b>"}`)) // exactly as submitted
	events := h.send("GET", "/admin/export/events", "")
	last := strings.Split(strings.TrimSpace(events.text), "\n")
	var e job.Event
	is.NoErr(json.Unmarshal([]byte(last[len(last)-1]), &e))
	is.Equal(e.Event, "job.succeeded")
}

func TestConcurrentExportLimit(t *testing.T) { // not parallel, because a process allows only two concurrent exports
	is := is.New(t)
	h := newIdleHost(t, api.Options{})
	big := strings.Repeat("x", 900_000)
	for range 20 { // more than the connection's buffers can hold
		h.submit(`{"kind":"echo","args":"` + big + `"}`)
	}
	var readers []net.Conn
	for range 2 {
		readers = append(readers, h.readSlowly("/admin/export/jobs"))
	}
	third := h.send("GET", "/admin/export/jobs", "")
	is.Equal(third.status, http.StatusServiceUnavailable)
	is.Equal(third.body["code"], "unavailable")
	for _, r := range readers {
		is.NoErr(r.Close())
	}
	pgtest.Wait(t, "closed exports free their slots", func() bool {
		return h.send("GET", "/admin/export/events", "").status == http.StatusOK
	})
}

// readSlowly requests a path and reads only the first line of the response.
func (h *host) readSlowly(path string) net.Conn {
	h.t.Helper()
	address, prefix, _ := strings.Cut(strings.TrimPrefix(h.url, "http://"), "/")
	conn, err := net.Dial("tcp", address)
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := conn.Write([]byte("GET /" + prefix + path + " HTTP/1.1\r\nHost: " + address + "\r\n\r\n")); err != nil {
		h.t.Fatal(err)
	}
	line, err := bufio.NewReaderSize(conn, 16).ReadString('\n')
	if err != nil || !strings.Contains(line, "200") {
		h.t.Fatalf("%q: %v", line, err)
	}
	return conn
}

func TestHistoryExportPages(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	h := newHost(t, api.Options{})
	id := h.submit(`{"kind":"echo","chain":[{"kind":"echo"}]}`)
	read := func(path string) (names []string) {
		for after := ""; ; {
			page := h.send("GET", path+"?limit=2&after="+after, "")
			is.Equal(page.status, http.StatusOK)
			for _, e := range page.body["events"].([]any) {
				names = append(names, e.(map[string]any)["cursor"].(string))
			}
			if after = page.body["next_cursor"].(string); after == "" {
				return names
			}
		}
	}
	pgtest.Wait(t, "the pipeline's history is there", func() bool { return len(read("/pipelines/"+id+"/events")) == 6 })
	seen := map[string]bool{}
	for _, cursor := range read("/events") {
		is.True(!seen[cursor]) // no event is exported twice
		seen[cursor] = true
	}
	is.Equal(len(seen), 7) // including the event for the pod that joined
	is.Equal(h.send("GET", "/pipelines/999999/events", "").status, http.StatusNotFound)
	is.Equal(h.send("GET", "/events?after=x", "").status, http.StatusBadRequest)
}
