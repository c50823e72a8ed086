package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// frame is one server-sent event.
type frame struct{ id, event, data string }

// of decodes the data of a frame.
func (f frame) of(t *testing.T, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(f.data), into); err != nil {
		t.Fatalf("event %s: %v in %s", f.event, err, f.data)
	}
}

// stream is an open stream. Its methods must be called from a single goroutine.
type stream struct {
	status   int
	header   http.Header
	comments []string
	body     io.ReadCloser
	lines    *bufio.Reader
	cancel   context.CancelFunc
}

// watch opens a stream on a pod; header alternates names and values. The stream is closed when the test ends, or after 90 seconds. That
// limit is long because the stream of all events waits for the transactions of other tests.
func (h *host) watch(path string, header ...string) *stream {
	h.t.Helper()
	s, err := h.watching(path, header...)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(s.leave)
	if s.status != http.StatusOK {
		h.t.Fatalf("watch %s: status %d", path, s.status)
	}
	return s
}

func (h *host) watching(path string, header ...string) (*stream, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	request, err := http.NewRequestWithContext(ctx, "GET", h.url+path, nil)
	if err != nil {
		cancel()
		return nil, err
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := watchers.Do(request)
	if err != nil {
		cancel()
		return nil, err
	}
	return &stream{status: response.StatusCode, header: response.Header, body: response.Body, lines: bufio.NewReader(response.Body), cancel: cancel}, nil
}

// watchers never reuses connections, so abandoning a stream closes its connection.
var watchers = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func (s *stream) leave() {
	s.cancel()
	_ = s.body.Close()
}

// next reads the next event. It returns io.EOF when the server has closed the stream.
func (s *stream) next() (f frame, err error) {
	for {
		line, err := s.lines.ReadString('\n')
		if err != nil {
			return f, err
		}
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "\n" && f.event != "":
			return f, nil
		case name == "id":
			f.id = value
		case name == "event":
			f.event = value
		case name == "data":
			f.data = value
		case name == "" && value != "":
			s.comments = append(s.comments, value)
		}
	}
}

// must reads the next event, or fails the test.
func (s *stream) must(t *testing.T) frame {
	t.Helper()
	f, err := s.next()
	if err != nil {
		t.Fatalf("the stream ended: %v; comments: %q", err, s.comments)
	}
	return f
}

// until reads events up to and including the named one.
func (s *stream) until(t *testing.T, event string) (list []frame) {
	t.Helper()
	for {
		f := s.must(t)
		list = append(list, f)
		if f.event == event {
			return list
		}
	}
}

// rest reads all events until the server closes the stream.
func (s *stream) rest(t *testing.T) (list []frame) {
	t.Helper()
	for {
		f, err := s.next()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatalf("the stream broke off: %v", err)
		}
		list = append(list, f)
	}
}

// named returns the names and the decoded data of events.
func named(t *testing.T, list []frame) (names []string, events []job.Event) {
	t.Helper()
	for _, f := range list {
		names = append(names, f.event)
		var e job.Event
		if f.id != "" && f.event != "snapshot" {
			f.of(t, &e)
		}
		events = append(events, e)
	}
	return names, events
}
