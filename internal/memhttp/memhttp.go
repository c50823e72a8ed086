// Package memhttp connects an [http.Client] to an [http.Handler] in the same process, without a network. Answers are streamed: the client
// reads while the handler writes. The end of a request's context, or closing its answer, ends the handler. The command line uses it for
// an API in its own process.
package memhttp

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
	// RemoteAddr is the client's address, as the handler sees it.
	RemoteAddr string

	handlers sync.WaitGroup
}

// RoundTrip returns when the handler has begun its answer. It waits for a handler that ignores the end of the request's context.
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
		// A reader must not take an answer that its context cut off for a complete one.
		stop := context.AfterFunc(request.Context(), func() { _ = pipe.CloseWithError(context.Cause(request.Context())) })
		defer stop()
		err := a.run(t.Handler, served)
		if err == nil {
			err = context.Cause(request.Context()) // the handler may return before stop has run; nil: the context is still open
		}
		_ = pipe.CloseWithError(err) // the first error counts; nil is io.EOF
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

// Close waits until every handler has returned. Answers must have been read to their end or closed.
func (t *Transport) Close() { t.handlers.Wait() }

// stream is the body of an answer. Close ends the handler.
type stream struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (s *stream) Close() error {
	s.cancel()
	return s.PipeReader.Close()
}

// answer is the handler's side: an [http.ResponseWriter] and [http.Flusher] for one goroutine. begun is closed when the fields that
// RoundTrip reads no longer change.
type answer struct {
	header, sent http.Header
	status       int
	aborted      bool // before the answer began
	body         *io.PipeWriter
	begun        chan struct{}
}

// run calls the handler. An error aborts the answer, as [http.ErrAbortHandler] does on a network.
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

// Flush sends the header. Written data has already reached the client.
func (a *answer) Flush() { a.WriteHeader(http.StatusOK) }
