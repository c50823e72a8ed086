package api

import (
	"crypto/rand"
	"net/http"
	"net/netip"
	"net/url"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/job"
)

// maxReason is the length of a reason that is kept, in bytes.
const maxReason = 500

// origin is where a request comes from and why, for the audit.
func (s *server) origin(c echo.Context) job.Origin {
	return job.Origin{Source: s.client(c.Request()), RequestID: requestID(c), Reason: bounded(c.Request().Header.Get("X-Reason"), maxReason)}
}

// originOfCall is the same of a request that is no route's.
func (s *server) originOfCall(request *http.Request) job.Origin {
	id := request.Header.Get(echo.HeaderXRequestID)
	if !validRequestID.MatchString(id) {
		id = rand.Text()
	}
	return job.Origin{Source: s.client(request), RequestID: id}
}

// client is the address that a request comes from.
func (s *server) client(request *http.Request) string {
	if addr := s.opts.TrustedProxies.Client(request); addr.IsValid() {
		return addr.String()
	}
	return request.RemoteAddr
}

// neighbourhood is for whom an address counts where requests are counted: in IPv6 a single client has all of a /64.
func neighbourhood(client string) string {
	addr, err := netip.ParseAddr(client)
	if err != nil || addr.Is4() {
		return client
	}
	block, err := addr.Prefix(64)
	if err != nil {
		return client
	}
	return block.String()
}

// asked is the path that a client asked for, also behind an [http.StripPrefix].
func asked(request *http.Request) string {
	if at, err := url.ParseRequestURI(request.RequestURI); err == nil {
		return at.Path
	}
	return request.URL.Path
}
