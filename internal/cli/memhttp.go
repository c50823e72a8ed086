package cli

import (
	"context"
	"io"
	"maps"
	"net/http"
	"sync"
)

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
