package api

import (
	"net"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/job"
)

// maxReason is the length of a reason that is kept, in bytes.
const maxReason = 500

// origin is where a request comes from and why, for the audit.
func (s *server) origin(c echo.Context) job.Origin {
	reason := c.Request().Header.Get("X-Reason")
	if len(reason) > maxReason {
		reason = reason[:maxReason]
	}
	return job.Origin{Source: s.client(c.Request()), RequestID: requestID(c), Reason: reason}
}

// client is the address that a request comes from.
func (s *server) client(request *http.Request) string {
	if host, _, err := net.SplitHostPort(request.RemoteAddr); err == nil {
		return host
	}
	return request.RemoteAddr
}
