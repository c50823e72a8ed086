package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/api/internal/response"
	"github.com/trapeze-run/trapeze/internal/feed"
	"github.com/trapeze-run/trapeze/internal/text"
)

// errSlowClient ends a stream whose client does not read it.
var errSlowClient = errors.New("the client does not read its stream")

// sse writes server-sent events to a buffer. flush sends them.
type sse struct {
	to     http.ResponseWriter
	ctl    *http.ResponseController
	within time.Duration
	err    error
}

// checkFlush returns an error if a response writer of the host's middleware cannot flush. Such a writer delivers a stream only at its end. A
// writer with an Unwrap method may pass its data to one that cannot flush, so the check includes every writer of the chain.
func checkFlush(w http.ResponseWriter) error {
	for {
		_, flushes := w.(http.Flusher)
		_, reports := w.(interface{ FlushError() error })
		inner, wraps := w.(interface{ Unwrap() http.ResponseWriter })
		if !flushes && !reports && !wraps {
			err := fmt.Errorf("cannot stream: middleware of the host program replaces the response writer by a %T, which cannot flush", w)
			return &response.Problem{Status: http.StatusInternalServerError, Code: "internal", Message: err.Error(), Err: err,
				Detail: "add an Unwrap method to the writer, or exclude the API's prefix from the middleware (for example http.TimeoutHandler)"}
		}
		if !wraps {
			return nil
		}
		w = inner.Unwrap()
	}
}

// newSSE starts the response. The server's deadlines are meant for responses that end, so each write has a separate deadline instead.
func newSSE(c echo.Context, within time.Duration) *sse {
	s := &sse{to: c.Response(), ctl: http.NewResponseController(c.Response().Writer), within: within}
	_ = s.ctl.SetReadDeadline(time.Time{})
	shrink(c.Request(), within)
	h := c.Response().Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // disables buffering in nginx
	c.Response().WriteHeader(http.StatusOK)
	return s
}

// printf writes to the buffers. If they are full, it waits at most s.within for the client to read.
func (s *sse) printf(format string, args ...any) {
	if s.err == nil {
		_ = s.ctl.SetWriteDeadline(time.Now().Add(s.within))
		_, s.err = fmt.Fprintf(s.to, format, args...)
	}
}

// oneLine replaces line breaks in event names chosen by handlers, because they would break the stream format.
var oneLine = strings.NewReplacer("\n", " ", "\r", " ", "\x00", " ")

func (s *sse) writeEvent(i feed.Item) {
	if i.ID != "" {
		s.printf("id: %s\n", i.ID)
	}
	s.printf("event: %s\ndata: %s\n\n", oneLine.Replace(i.Event), i.Data)
}

func (s *sse) comment(text string) { s.printf(": %s\n\n", text) }

// begin starts a stream with a snapshot of the watched job or pipeline, without the secrets that the reader may not see.
func (s *sse) begin(watched *feed.Stream, seen any) error {
	snapshot, err := text.JSON(seen)
	if err != nil {
		return err
	}
	again := time.Second + rand.N(2*time.Second) // #nosec G404 -- jitter, so that clients do not all reconnect at once
	s.printf("retry: %d\n\n", again.Milliseconds())
	if watched.Reset != "" {
		reason, err := json.Marshal(map[string]string{"reason": watched.Reset})
		if err != nil {
			return err
		}
		s.writeEvent(feed.Item{Event: "reset", Data: reason})
	}
	s.writeEvent(feed.Item{ID: watched.Cursor, Event: "snapshot", Data: snapshot})
	return s.flush()
}

// flush sends the buffered events. It returns errSlowClient if the client does not read them in time.
func (s *sse) flush() error {
	if s.err == nil {
		s.err = s.ctl.Flush()
	}
	if errors.Is(s.err, os.ErrDeadlineExceeded) || errors.Is(s.err, syscall.ETIMEDOUT) {
		return errSlowClient
	}
	return s.err
}

type connKey struct{}

// ConnContext is meant to be used as http.Server.ConnContext. It gives the API access to the connection of a stream, so that the API can
// limit the kernel buffers and quickly detect a client that does not read. Without it, megabytes may be buffered before the API notices.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// streamBuffer is the size of a stream's send buffer in the kernel.
const streamBuffer = 64 << 10

// shrink limits a stream's kernel buffers and the time for which sent data may stay unacknowledged.
func shrink(request *http.Request, within time.Duration) {
	conn, ok := request.Context().Value(connKey{}).(net.Conn)
	if !ok || request.ProtoMajor != 1 {
		return // an HTTP/2 connection is shared with other requests
	}
	if secured, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secured.NetConn()
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(streamBuffer)
		answerWithin(tcp, 2*within)
	}
}
