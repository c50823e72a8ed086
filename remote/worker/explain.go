package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// complainEvery is the minimum interval between log lines about a worker that no pod accepts. Connection attempts are much more frequent.
const complainEvery = 10 * time.Second

// complaints logs why a worker has no stream: immediately at first, and then at intervals. It must be used by only one goroutine.
type complaints struct {
	last time.Time
}

// complain logs why there is no stream. If was is true, the worker has just lost its stream, and complain logs immediately.
func (w *Worker) complain(ctx context.Context, c *complaints, was bool, server string, err error) {
	if time.Since(c.last) < complainEvery && !was {
		w.log.DebugContext(ctx, "no pod accepts the worker, retrying", telemetry.Server, server, telemetry.Err, err)
		return
	}
	c.last = time.Now()
	text := "no pod accepts the worker, retrying"
	if was {
		text = "the job stream ended, reopening it"
	}
	w.log.WarnContext(ctx, text, telemetry.Server, server, telemetry.Err, err, telemetry.Running, len(w.list()))
}

// withHint adds a hint to a connection error that arose locally, because its text may not help a first-time user. Errors from a pod need no
// hint.
func withHint(server string, err error) error {
	if hint := hint(server, err); hint != "" {
		return fmt.Errorf("%w: %s", err, hint)
	}
	return err
}

func hint(server string, err error) string {
	clear := strings.HasPrefix(server, "http://")
	switch wrong, network := errors.AsType[*net.OpError](err); {
	case connect.IsWireError(err), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return ""
	case errors.Is(err, http.ErrSchemeMismatch):
		return "the server does not speak TLS: set TRAPEZE_TLS_CERT on the pod, or use http:// for a loopback address"
	case noHTTP2(err):
		return "the server speaks TLS but not HTTP/2: configure the proxy to forward gRPC, or bypass it"
	case connect.CodeOf(err) == connect.CodeUnimplemented:
		return "the server is not a pod: want the root address of a pod, without a path"
	case network && wrong.Op == "dial", strings.Contains(err.Error(), "HTTP status "):
		return ""
	case clear:
		return "the server does not speak HTTP/2 in clear text: want a pod without TLS and without a proxy in front"
	}
	return ""
}

// noHTTP2 reports whether the TLS peer does not support HTTP/2. It inspects the error text, because crypto/tls exports no usable alert
// type.
func noHTTP2(err error) bool {
	wrong, ok := errors.AsType[*net.OpError](err)
	return ok && wrong.Op == "remote error" && strings.Contains(wrong.Err.Error(), "no application protocol")
}
