package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/job"
)

// maxReason is the length of a reason that is kept, in bytes.
const maxReason = 500

// origin is where a request comes from and why, for the audit.
func (s *server) origin(c echo.Context) job.Origin {
	return job.Origin{Source: s.client(c.Request()), RequestID: requestID(c), Reason: bounded(c.Request().Header.Get("X-Reason"), maxReason)}
}

// client is the address that a request comes from.
func (s *server) client(request *http.Request) string {
	if addr := s.opts.TrustedProxies.Client(request); addr.IsValid() {
		return addr.String()
	}
	return request.RemoteAddr
}
