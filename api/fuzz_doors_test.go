package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

// house is the API with a database, but without a network or a pod that runs jobs.
type house struct {
	doors *echo.Echo
	pool  *pgxpool.Pool
}

func newHouse(f *testing.F) house {
	f.Helper()
	h := house{doors: echo.New(), pool: pgtest.Pool(f)}
	h.doors.HTTPErrorHandler = api.HandleError // unknown paths get the same response as in a real server
	r, err := runner.New(h.pool, runner.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(r.Close)
	runner.HandleRaw(r, "echo", func(_ context.Context, j *runner.Job[runner.Raw]) (*runner.Outcome, error) {
		return runner.Done(j.Args.JSON), nil
	})
	api.Mount(h.doors.Group(""), r, api.Options{InsecureAllowAll: true, ChangesPerSecond: -1})
	return h
}

// ask sends a request. It fails the test if the response is a server error, or a client error without a code.
func (h house) ask(t *testing.T, method string, at *url.URL, body string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	request := (&http.Request{Method: method, URL: at, Header: http.Header{}, Host: "127.0.0.1", RemoteAddr: "127.0.0.1:1"}).WithContext(t.Context())
	request.Body = http.NoBody
	if body != "" {
		request.Body = readCloser{strings.NewReader(body)}
		request.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	answer := httptest.NewRecorder()
	h.doors.ServeHTTP(answer, request)
	var problem struct {
		Code      string `json:"code"`
		RequestID string `json:"request_id"`
	}
	switch {
	case answer.Code >= http.StatusInternalServerError:
		t.Errorf("%s %s with %q: %d %s", method, at, body, answer.Code, answer.Body)
	case answer.Code >= http.StatusBadRequest && !strings.HasPrefix(at.Path, "/ui/"): // errors below /ui/ are HTML pages
		if err := json.Unmarshal(answer.Body.Bytes(), &problem); err != nil || problem.Code == "" || problem.RequestID == "" {
			t.Errorf("%s %s with %q: %d %s: %v", method, at, body, answer.Code, answer.Body, err)
		}
	}
	return answer
}

type readCloser struct{ *strings.Reader }

func (readCloser) Close() error { return nil }

// sendable reports whether net/http accepts a header value.
func sendable(header string) bool {
	return !strings.ContainsFunc(header, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

// An accepted job is stored exactly as submitted.
func FuzzSubmittedJobRoundTrip(f *testing.F) {
	for _, body := range submissions {
		f.Add(body, "")
	}
	f.Add(`{"kind":"echo","args":`+awkward+`}`, "key")
	f.Add(`{"kind":"echo","delay":"1h"}`, "\xff")
	f.Add(`{"kind":"echo","delay":"1h"}`, strings.Repeat("é", 251))
	h := newHouse(f)
	f.Fuzz(func(t *testing.T, body, key string) {
		if !sendable(key) {
			return
		}
		answer := h.ask(t, "POST", &url.URL{Path: "/jobs"}, body, "Idempotency-Key", key)
		if answer.Code != http.StatusAccepted {
			return
		}
		var made struct {
			ID        string
			Duplicate bool
		}
		var sent api.Submission
		if err := errors.Join(json.Unmarshal(answer.Body.Bytes(), &made), api.Decode(strings.NewReader(body), &sent)); err != nil {
			t.Fatalf("%s is accepted with %s: %v", body, answer.Body, err)
		}
		found := h.ask(t, "GET", &url.URL{Path: "/jobs/" + made.ID}, "")
		var kept struct {
			Kind, Subject string
			Args          json.RawMessage
			Priority      int
			MaxAttempts   *int `json:"max_attempts"`
		}
		if err := json.Unmarshal(found.Body.Bytes(), &kept); err != nil {
			t.Fatal(err)
		}
		if sent.Args == nil {
			sent.Args = json.RawMessage("{}")
		}
		if kept.Kind != sent.Kind || !made.Duplicate && (string(compact(t, kept.Args)) != string(compact(t, sent.Args)) ||
			sent.Subject != nil && kept.Subject != *sent.Subject || sent.Priority != nil && kept.Priority != *sent.Priority ||
			sent.MaxAttempts != nil && *kept.MaxAttempts != *sent.MaxAttempts) {
			t.Errorf("%s comes back as %s", body, found.Body)
		}
		// PostgreSQL must be able to parse the stored JSON, unless numbers or nesting exceed the limits of jsonb.
		_, err := h.pool.Exec(t.Context(), `select args::jsonb, planned::jsonb from trapeze.job where id = $1::text::bigint`, made.ID)
		var refusal *pgconn.PgError
		if err != nil && !(errors.As(err, &refusal) && slices.Contains([]string{"22003", "54000", "54001"}, refusal.Code)) {
			t.Errorf("%s: %v", body, err)
		}
	})
}

// The fuzzer calls every route in the table, including routes added later, with arbitrary paths, queries, bodies and reasons.
func FuzzRoutesForServerErrors(f *testing.F) {
	routes := slices.DeleteFunc(api.Routes(), func(r api.Route) bool { // skip endless streams, and the route whose response depends on the pod's state
		return strings.HasSuffix(r.Path, "/stream") || r.Path == "/readyz"
	})
	routes = append(routes, api.Route{Method: http.MethodGet, Path: "/ui/:page"})
	queries := []string{"", "limit=1000", "limit=0", "cursor=1700000000000000.1", "after=1.1.1", "after=-1.0.0", "since=9999-12-31T23:59:59-23:59",
		"kind=%00", "kind=%ff&lane=%ff&subject=%ff", "state=pending,failed&parent=1&pipeline=1", "actor=%00", "before=9223372036854775807",
		"dry_run=true", "%", "a;b", "limit=1&limit=2"}
	for i := range routes {
		f.Add(uint16(i), "1", "", "", "")
		f.Add(uint16(i), "1001", "", `{}`, strings.Repeat("é", 251))
		f.Add(uint16(i), "1002", "", `{}`, "\xff")
		f.Add(uint16(i), "9223372036854775807", queries[i%len(queries)], `{}`, "because")
		f.Add(uint16(i), "\x00\xff/../é", queries[(i+7)%len(queries)], `{"args":{"a":"\u0000"},"priority":1e9}`, strings.Repeat("é", 251))
		f.Add(uint16(i), "default", "kind=%00&actor=%ff&name=%00", `null`, "\xff")
	}
	for i, page := range []string{"", "jobs", "jobs/1", "pipelines", "pipelines/1", "lanes", "limits", "pods", "audit", "login", "static/app.js", "jobs/\x00"} {
		f.Add(uint16(len(routes)-1), page, queries[i], "", "")
		f.Add(uint16(len(routes)-1), page, "kind=%00&lane=%ff&state=%00&actor=%00&cursor=%00", "", "")
	}
	for _, body := range append(submissions, `{"slots":2147483648}`, `{"slots":-1,"max_age_s":1e10}`, `{"args":"\ud800"}`, `{"token":"\u0001","part":"p","result":1}`) {
		f.Add(uint16(3), "1", "", body, "")
	}
	h := newHouse(f)
	for _, id := range []string{"1", "1001", "1002"} {
		request := httptest.NewRequest("POST", "/jobs", strings.NewReader(`{"kind":"echo"}`))
		request.Header.Set("Content-Type", "application/json")
		answer := httptest.NewRecorder()
		h.doors.ServeHTTP(answer, request)
		if !strings.Contains(answer.Body.String(), `"id":"`+id+`"`) {
			f.Fatalf("job %s: %s", id, answer.Body) // the seeds refer to these IDs
		}
	}
	f.Fuzz(func(t *testing.T, no uint16, name, query, body, reason string) {
		door := routes[int(no)%len(routes)]
		asked, _ := url.ParseQuery(query)
		if !sendable(reason) || asked.Has("wait") {
			return // no job finishes in this test, so the request would wait until its timeout
		}
		segments, escaped := strings.Split(door.Path, "/"), strings.Split(door.Path, "/")
		for i := range segments {
			if strings.HasPrefix(segments[i], ":") {
				segments[i], escaped[i] = name, url.PathEscape(name)
			}
		}
		at := &url.URL{Path: strings.Join(segments, "/"), RawPath: strings.Join(escaped, "/"), RawQuery: query}
		h.ask(t, door.Method, at, body, "X-Reason", reason)
	})
}
