package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/schema"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/runner"
)

// patience limits how long a server may take to begin a response.
const patience = 30 * time.Second

// Client calls the API.
type Client struct {
	url, token, reason string

	http  *http.Client
	local bool // whether the API is in this process
	close func()
}

// For returns the client for a command. The client uses the server given by --server or TRAPEZE_SERVER, or else the database. The caller
// must close it.
func For(c *cobra.Command) (*Client, error) {
	config, err := Load()
	if err != nil {
		return nil, err
	}
	to := &Client{url: ServerFlag(c, config), token: flagOr(c, "token", config.Token), reason: flagOr(c, "reason", "")}
	if to.url == "" {
		return to, to.openLocal(c.Context(), config)
	}
	if err := ValidServer(to.url); err != nil {
		return nil, Usage("--server: %w", err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout = patience
	to.url, to.close = strings.TrimRight(to.url, "/"), transport.CloseIdleConnections
	to.http = &http.Client{
		Transport: transport,
		// Following a redirect could turn a POST into a GET and send the token to another address.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return to, nil
}

// ServerFlag returns the URL of the server that a command uses, or an empty string if the command uses the API in this process.
func ServerFlag(c *cobra.Command, config Settings) string { return flagOr(c, "server", config.Server) }

// flagOr returns a persistent flag's value, or the given default if the flag is not set.
func flagOr(c *cobra.Command, flag, otherwise string) string {
	value, _ := c.Root().PersistentFlags().GetString(flag) // read from the root, because the complete command has a different --token flag
	return cmp.Or(value, otherwise)
}

// Close closes all connections.
func (at *Client) Close() { at.close() }

// Path replaces the parameters in a route's path, such as /jobs/:id/retry, with the given values in order.
func Path(route string, values ...any) string {
	parts := strings.Split(route, "/")
	for i, part := range parts {
		if strings.HasPrefix(part, ":") {
			parts[i], values = url.PathEscape(fmt.Sprint(values[0])), values[1:]
		}
	}
	return strings.Join(parts, "/")
}

// QueryOf returns the given query parameters, omitting empty ones. pairs alternates names and values.
func QueryOf(pairs ...string) url.Values {
	q := url.Values{}
	for ; len(pairs) > 1; pairs = pairs[2:] {
		if pairs[1] != "" {
			q.Set(pairs[0], pairs[1])
		}
	}
	return q
}

// Get requests a path and decodes the response.
func Get[T any](ctx context.Context, at *Client, path string, query url.Values) (T, error) {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return Do[T](ctx, at, http.MethodGet, path, nil)
}

// Post sends a command and decodes the response. If body is nil, the request has no body.
func Post[T any](ctx context.Context, at *Client, path string, body any) (T, error) {
	return Do[T](ctx, at, http.MethodPost, path, body)
}

// None is the type of a response that the caller ignores.
type None struct{}

// Do sends a request and decodes the response. headers alternates names and values.
func Do[T any](ctx context.Context, at *Client, method, path string, body any, headers ...string) (answer T, err error) {
	if !at.local {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 2*patience)
		defer cancel()
	}
	response, err := at.send(ctx, method, path, body, headers...)
	if err != nil {
		return answer, err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusNoContent {
		return answer, nil
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		const text = "%s %s: decode the response of %s: %w"
		if method != http.MethodGet {
			return answer, Unknown(text, method, path, at.url, err)
		}
		return answer, Unavailable(text, method, path, at.url, err)
	}
	return answer, nil
}

// ListAll returns the rows in the response's name field, fetching pages as needed. A limit in the query applies to the total number of rows; 0
// means all rows.
func ListAll[T any](ctx context.Context, at *Client, path, name string, query url.Values) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		limited, asked := query.Has("limit"), url.Values{}
		maps.Copy(asked, query)
		most, _ := strconv.Atoi(asked.Get("limit"))
		for left := most; ; {
			if limited {
				size := 1000
				if most > 0 {
					size = min(left, size)
				}
				asked.Set("limit", strconv.Itoa(size))
			}
			page, err := Get[map[string]json.RawMessage](ctx, at, path, asked)
			var rows []T
			next := ""
			if err == nil {
				err = json.Unmarshal(page[name], &rows)
			}
			if cursor := page["next_cursor"]; err == nil && cursor != nil {
				err = json.Unmarshal(cursor, &next)
			}
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, row := range rows {
				if !yield(row, nil) {
					return
				}
			}
			if left -= len(rows); next == "" || most > 0 && left <= 0 {
				return
			}
			asked.Set("cursor", next)
		}
	}
}

// Copy writes the response for a path to a writer.
func (at *Client) Copy(ctx context.Context, to io.Writer, path string) error {
	response, err := at.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(to, response.Body); err != nil {
		from := " of " + at.url
		if at.local {
			from = ""
		}
		return Unavailable("the export%s was interrupted, the output is incomplete: %w", from, err)
	}
	return nil
}

// send sends a request. An error response is returned as an error.
func (at *Client) send(ctx context.Context, method, path string, body any, headers ...string) (*http.Response, error) {
	var content io.Reader = http.NoBody
	if body != nil {
		raw, err := text.JSON(body)
		if err != nil {
			return nil, err
		}
		content, headers = bytes.NewReader(raw), append(headers, "Content-Type", "application/json")
	}
	var sent atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }})
	request, err := http.NewRequestWithContext(ctx, method, at.url+path, content)
	if err != nil {
		return nil, Usage("--server: %w", err)
	}
	if at.token != "" {
		headers = append(headers, "Authorization", "Bearer "+at.token)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i+1] != "" {
			request.Header.Set(headers[i], headers[i+1])
		}
	}
	if at.reason != "" {
		request.Header.Set("X-Reason", at.reason)
	}
	response, err := at.http.Do(request)
	if wrapped, ok := errors.AsType[*url.Error](err); ok { // drop the method and the URL from the message
		err = wrapped.Err
	}
	switch {
	case err != nil && at.local:
		return nil, err
	case err != nil && sent.Load() && method != http.MethodGet:
		return nil, Unknown("lost the connection to %s after sending the request, which may have taken effect: check before you repeat it: %w", at.url, err)
	case err != nil:
		return nil, Unavailable("%s does not respond; check that it runs and that --server is correct: %w", at.url, err)
	case response.StatusCode >= 300:
		defer response.Body.Close()
		return nil, at.refusal(method, response)
	}
	return response, nil
}

// answerError is an error response from a server.
type answerError struct {
	status int
	code   string // the API's error code; empty if a server in front of the API responded
	change bool   // whether the request was meant to change something
	text   string
	cause  error // the corresponding error in package job, or nil
}

func (e *answerError) Error() string { return e.text }
func (e *answerError) Unwrap() error { return e.cause }

// temporary reports whether a retry might succeed.
func (e *answerError) temporary() bool {
	return e.status == http.StatusTooManyRequests || e.status >= http.StatusInternalServerError && e.code != "internal"
}

// ExitsWith returns the exit code for the response. An error from package job determines the code if the response corresponds to one;
// otherwise the HTTP status does.
func (e *answerError) ExitsWith() int {
	if code := Code(e.cause); code != CodeOK && code != CodeRefused {
		return code
	}
	gateway := e.code == "" && (e.status == http.StatusBadGateway || e.status == http.StatusGatewayTimeout)
	switch {
	case e.change && (gateway || e.code == "internal"):
		return CodeUnknown
	case e.cause != nil:
		return CodeRefused
	case e.status >= http.StatusInternalServerError, e.status == http.StatusTooManyRequests:
		return CodeUnavailable
	case e.code == "", e.status == http.StatusBadRequest, e.status == http.StatusUnauthorized:
		return CodeUsage
	}
	return CodeRefused
}

// refusal converts a server's error response to an error that suggests a remedy.
func (at *Client) refusal(method string, response *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	var p struct {
		Code, Message, Detail string
		RequestID             string `json:"request_id"`
	}
	_ = json.Unmarshal(body, &p)
	e := &answerError{status: response.StatusCode, code: p.Code, change: method != http.MethodGet, text: p.Detail, cause: api.ErrorOf(p.Code)}
	if e.text == "" {
		e.text = p.Message
	}
	switch {
	case p.Code == "" && response.StatusCode < 400:
		e.text = fmt.Sprintf("%s redirects to %s: use that address for --server", at.url, response.Header.Get("Location"))
	case p.Code == "":
		e.text = fmt.Sprintf("%s returned %s, which is not a response of the API: check the path prefix of --server", at.url, response.Status)
	case p.Code == "unauthenticated":
		e.text = at.url + " requires authentication: set TRAPEZE_TOKEN to a valid token"
	case p.Code == "forbidden":
		e.text = at.url + ": " + p.Message + ": " + p.Detail
	case p.Code == "not_found" && p.Detail == "":
		e.text = fmt.Sprintf("%s has no route %s %s: check its release and the path prefix of --server", at.url, method, response.Request.URL.Path)
	case p.Code == "internal", p.Code == "unavailable":
		e.text = fmt.Sprintf("%s: %s (request %s)", at.url, e.text, p.RequestID)
	}
	return e
}

// NotFound reports whether err is a server's response that the resource does not exist.
func NotFound(err error) bool {
	answer, ok := errors.AsType[*answerError](err)
	return ok && answer.status == http.StatusNotFound
}

// MayBeTemporary reports whether err may be temporary, as it is when the database or the server is briefly unavailable.
func MayBeTemporary(err error) bool {
	if answer, ok := errors.AsType[*answerError](err); ok {
		return answer.temporary()
	}
	return store.Transient(err)
}

// openLocal connects the client to an API in this process, which uses DATABASE_URL and a runner that is never started. The local user has
// all permissions.
func (at *Client) openLocal(ctx context.Context, config Settings) error {
	if config.DatabaseURL == "" {
		return ErrNoDatabase
	}
	pool, err := config.Connect(ctx, false)
	if err != nil {
		return err
	}
	if err := schema.Check(ctx, pool, config.Options.Schema); err != nil {
		pool.Close()
		return err
	}
	slog.SetDefault(slog.New(slog.DiscardHandler)) // the command prints its own error
	o := config.Options
	o.Logger = slog.Default()
	r, err := runner.New(pool, o)
	if err != nil {
		pool.Close()
		return Usage("%w", err)
	}
	here := &local{pool: pool, runner: r, polls: config.Options.DirectURL == "off"}
	here.api = Transport{RemoteAddr: "cli", Handler: api.Handler(r, api.Options{
		InsecureAllowAll: true, Operator: Operator(), OnFailure: keepCause, MaxBodyBytes: 1 << 30, ChangesPerSecond: -1,
	})}
	at.local, at.url, at.http = true, "http://trapeze", &http.Client{Transport: here}
	at.close = func() {
		here.api.Close()
		r.Close()
		pool.Close()
	}
	return nil
}

// Operator returns the local user's name for the audit log.
func Operator() string {
	if who, err := user.Current(); err == nil && (api.Principal{Name: who.Username}).Validate() == nil {
		return who.Username
	}
	return "operator"
}

// local is the HTTP transport to the API in this process. After a change, it wakes the pods, which might otherwise not notice the change
// until their next poll. Errors that the API would only log are returned as the request's error.
type local struct {
	api    Transport
	pool   *pgxpool.Pool
	runner *runner.Runner
	polls  bool // whether pods poll instead of listening for notifications
}

func (l *local) RoundTrip(request *http.Request) (*http.Response, error) {
	behind := &cause{}
	response, err := l.api.RoundTrip(request.WithContext(context.WithValue(request.Context(), causeKey{}, behind)))
	if err != nil {
		return nil, err
	}
	if known := behind.err.Load(); known != nil {
		_ = response.Body.Close()
		return nil, *known
	}
	if request.Method != http.MethodGet && response.StatusCode < 300 && !l.polls {
		_ = inside.Of(l.runner).Store.Notify(request.Context(), l.pool)
	}
	response.Body = &body{response.Body, behind}
	return response, nil
}

// cause holds the error behind a response, if any. The request's context carries it.
type cause struct{ err atomic.Pointer[error] }

type causeKey struct{}

func keepCause(request *http.Request, err error) {
	if behind, ok := request.Context().Value(causeKey{}).(*cause); ok {
		behind.err.Store(&err)
	}
}

// body is a response body. If the response was aborted, Read returns the cause.
type body struct {
	io.ReadCloser
	behind *cause
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if known := b.behind.err.Load(); known != nil && err != nil && err != io.EOF { //nolint:errorlint // the end of a body is exactly io.EOF
		err = *known
	}
	return n, err
}

// Transport is an [http.RoundTripper] that calls a handler. It is safe for concurrent use.
type Transport struct {
	Handler http.Handler
	// RemoteAddr is the client address that the handler sees.
	RemoteAddr string

	handlers sync.WaitGroup
}

// RoundTrip waits until the handler has begun its response, even if the request's context is cancelled and the handler ignores that.
func (t *Transport) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(request.Context())
	served := request.Clone(ctx)
	served.RemoteAddr, served.RequestURI = t.RemoteAddr, request.URL.RequestURI()
	if served.Body == nil {
		served.Body = http.NoBody
	}
	body, pipe := io.Pipe()
	a := &answer{header: http.Header{}, body: pipe, begun: make(chan struct{})}
	t.handlers.Go(func() {
		defer cancel()
		defer served.Body.Close()
		// Without this error, a response that is cut off because its context has ended could be mistaken for a complete one.
		stop := context.AfterFunc(request.Context(), func() { _ = pipe.CloseWithError(context.Cause(request.Context())) })
		defer stop()
		err := a.run(t.Handler, served)
		if err == nil {
			err = context.Cause(request.Context()) // the handler may return before AfterFunc runs; nil if the context is not done
		}
		_ = pipe.CloseWithError(err) // only the first error counts, and nil means io.EOF
	})
	<-a.begun
	if a.aborted {
		return nil, io.ErrUnexpectedEOF
	}
	return &http.Response{
		Status: http.StatusText(a.status), StatusCode: a.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: a.sent,
		Body: &stream{body, cancel}, ContentLength: -1, Request: request,
	}, nil
}

// Close waits until every handler has returned. All response bodies must have been closed or read to the end.
func (t *Transport) Close() { t.handlers.Wait() }

// stream is a response body. Close cancels the handler's context.
type stream struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (s *stream) Close() error {
	s.cancel()
	return s.PipeReader.Close()
}

// answer is the handler's side of a response. It is an [http.ResponseWriter] and [http.Flusher] for use by one goroutine. begun is closed
// once the fields that RoundTrip reads no longer change.
type answer struct {
	header, sent http.Header
	status       int
	aborted      bool // whether the response was aborted before it began
	body         *io.PipeWriter
	begun        chan struct{}
}

// run calls the handler. If the handler panics with [http.ErrAbortHandler], run returns an error, which aborts the response. Other panics
// are propagated.
func (a *answer) run(handler http.Handler, request *http.Request) (err error) {
	defer func() {
		thrown := recover()
		if thrown == nil {
			a.WriteHeader(http.StatusOK)
			return
		}
		if thrown != http.ErrAbortHandler { //nolint:errorlint // as net/http compares it
			panic(thrown)
		}
		if err = io.ErrUnexpectedEOF; a.status == 0 {
			a.aborted = true
			close(a.begun)
		}
	}()
	handler.ServeHTTP(a, request)
	return nil
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= http.StatusOK {
		a.status, a.sent = status, maps.Clone(a.header)
		close(a.begun)
	}
}

func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}

// Flush sends the header. Written data reaches the client even without a call to Flush.
func (a *answer) Flush() { a.WriteHeader(http.StatusOK) }
