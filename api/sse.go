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

	"github.com/trapeze-run/trapeze/internal/feed"
)

// errNotTaken is the end of a stream whose client does not take what is written.
var errNotTaken = errors.New("the client does not read its stream")

// sse writes server-sent events. What was written is sent by flush.
type sse struct {
	to     http.ResponseWriter
	ctl    *http.ResponseController
	within time.Duration
	err    error
}

// newSSE begins the answer. The deadlines of the server are for answers that end; here each write has its own.
func newSSE(c echo.Context, within time.Duration) *sse {
	s := &sse{to: c.Response(), ctl: http.NewResponseController(c.Response().Writer), within: within}
	_ = s.ctl.SetReadDeadline(time.Time{})
	shrink(c.Request(), within)
	h := c.Response().Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // nginx passes on what comes, when it comes
	c.Response().WriteHeader(http.StatusOK)
	return s
}

// printf writes to the buffers, and waits for the client where they are full: each time for as long as it may take.
func (s *sse) printf(format string, args ...any) {
	if s.err == nil {
		_ = s.ctl.SetWriteDeadline(time.Now().Add(s.within))
		_, s.err = fmt.Fprintf(s.to, format, args...)
	}
}

// oneLine keeps a name that a handler gave its event from being more than a name.
var oneLine = strings.NewReplacer("\n", " ", "\r", " ", "\x00", " ")

func (s *sse) writeEvent(i feed.Item) {
	if i.ID != "" {
		s.printf("id: %s\n", i.ID)
	}
	s.printf("event: %s\ndata: %s\n\n", oneLine.Replace(i.Event), i.Data)
}

func (s *sse) comment(text string) { s.printf(": %s\n\n", text) }

// begin writes what a stream begins with: what is watched, as its reader may see it.
func (s *sse) begin(watched *feed.Stream, seen any) error {
	snapshot, err := encodeJSON(seen)
	if err != nil {
		return err
	}
	again := time.Second + rand.N(2*time.Second) // #nosec G404 -- not everybody at once
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

// flush sends what was written: errNotTaken when the client does not take it in time.
func (s *sse) flush() error {
	if s.err == nil {
		s.err = s.ctl.Flush()
	}
	if errors.Is(s.err, os.ErrDeadlineExceeded) || errors.Is(s.err, syscall.ETIMEDOUT) {
		return errNotTaken
	}
	return s.err
}

type connKey struct{}

// ConnContext is for the field of that name of an [http.Server]: with it, the API knows the connection of a stream, and has its buffers
// in the kernel bounded, so that a client which does not read is noticed soon. Without it, megabytes may wait for such a client first.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// streamBuffer is how much of a stream may wait in the kernel for its client.
const streamBuffer = 64 << 10

// shrink bounds what waits for the client of a stream, and how long what was sent may stay without an answer.
func shrink(request *http.Request, within time.Duration) {
	conn, ok := request.Context().Value(connKey{}).(net.Conn)
	if !ok || request.ProtoMajor != 1 {
		return // HTTP/2 shares its connection
	}
	if secured, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secured.NetConn()
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(streamBuffer)
		answerWithin(tcp, 2*within)
	}
}
