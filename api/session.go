package api

import (
	"cmp"
	"errors"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/api/internal/response"
	"github.com/trapeze-run/trapeze/api/ui"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/store/admin"
)

var sessionRoutes = []Route{
	{Method: http.MethodPost, Path: "/ui/login", Needs: access.Nothing, Summary: "Start a browser session with the form field token",
		in: loginForm{}, form: true, statuses: []int{http.StatusNoContent, http.StatusSeeOther}, do: login},
	{Method: http.MethodPost, Path: "/ui/logout", Needs: access.Nothing, Summary: "End a browser session",
		statuses: []int{http.StatusNoContent, http.StatusSeeOther}, do: logout},
}

// loginForm is the dashboard's login form.
type loginForm struct {
	Token string `json:"token"`
	Next  string `json:"next,omitempty"` // the requested page, relative to /ui/
}

// login exchanges the token in a form for a session cookie. It redirects the browser to the requested page, or back to the form if the
// token is invalid.
func login(c *call) (any, error) {
	if c.opts.Login == nil {
		return nil, &response.Problem{Status: http.StatusNotFound, Code: "not_found", Message: "sessions are disabled"}
	}
	if err := checkMedia(c, "application/x-www-form-urlencoded"); err != nil {
		return nil, err // a body in another format is not a wrong token
	}
	if err := c.Request().ParseForm(); err != nil {
		if _, ok := errors.AsType[*response.Problem](err); ok {
			return nil, err
		}
		return nil, response.Invalid("invalid form: %v", err)
	}
	token := strings.TrimSpace(c.Request().PostFormValue("token")) // never from the URL, because URLs are logged
	next := ui.Onward(c.Request().PostFormValue("next"))
	session, until, err := c.opts.Login(token)
	var who access.Principal
	if err == nil {
		who, err = c.door.owner(c.Request(), session)
	}
	if err != nil {
		c.door.strangers.wrong(c.Request(), c.door.client(c.Request()), err)
		if err := c.logins.enforce(neighbourhood(c.door.client(c.Request()))); err != nil {
			return nil, err // only attempts with invalid tokens are rate-limited
		}
		no := &response.Problem{Status: http.StatusUnauthorized, Code: "unauthenticated", Message: "unknown or expired token", Err: err, Refused: true}
		if !acceptsHTML(c) {
			return nil, no
		}
		c.door.refusals.note(c.Request(), c.route, no)
		return nil, c.Redirect(http.StatusSeeOther, "login?"+back(next).Encode())
	}
	if err := c.door.audit(c.ctx(), admin.AuditEntry{Actor: who.Name, Action: "session.start", Target: "session", After: map[string]time.Time{"until": until.UTC()}}); err != nil {
		return nil, err
	}
	c.SetCookie(c.sessionCookie(session, until))
	return nil, redirect(c, next)
}

// owner returns the principal for a new session. It returns an error if Authenticate rejects the session, or if the principal's name is
// reserved.
func (d *door) owner(request *http.Request, session string) (access.Principal, error) {
	request = request.Clone(request.Context())
	request.Header.Del("Authorization")
	request.Header.Del("Cookie")
	request.AddCookie(&http.Cookie{Name: access.SessionCookie, Value: session}) // #nosec G124 -- a cookie of a request
	return d.authenticate(request)
}

// logout deletes the browser's session cookie, even if the audit entry cannot be written.
func logout(c *call) (any, error) {
	c.SetCookie(c.sessionCookie("", time.Unix(1, 0)))
	if _, err := c.Request().Cookie(access.SessionCookie); err == nil {
		if who, err := c.door.authenticate(c.Request()); err == nil {
			if err := c.door.audit(c.ctx(), admin.AuditEntry{Actor: who.Name, Action: "session.end", Target: "session"}); err != nil {
				return nil, err
			}
		}
	}
	return nil, redirect(c, "")
}

// back returns the query that makes the login page report a failure and keep the requested page.
func back(next string) url.Values {
	asked := url.Values{"failed": {"1"}}
	if next != "" {
		asked.Set("next", next)
	}
	return asked
}

// redirect sends a browser to a dashboard page, whose path is relative to the dashboard's root. Other clients get an empty response.
func redirect(c echo.Context, next string) error {
	if acceptsHTML(c) {
		return c.Redirect(http.StatusSeeOther, "./"+next)
	}
	return c.NoContent(http.StatusNoContent)
}

// acceptsHTML reports whether the client accepts an HTML page as the response.
func acceptsHTML(c echo.Context) bool {
	return strings.Contains(c.Request().Header.Get("Accept"), "text/html")
}

// sessionCookie returns a session cookie. Scripts cannot read it, browsers do not send it with requests from other sites, and it applies
// only below the API's prefix.
func (c *call) sessionCookie(value string, until time.Time) *http.Cookie {
	prefix := prefixOf(c, c.route)
	return &http.Cookie{ // #nosec G124 -- Secure is set if the request used TLS
		Name: c.door.cookieName(c.Request(), prefix), Value: value, Path: cmp.Or(prefix, "/"), Expires: until, HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: usedTLS(c.Request(), c.opts.TrustedProxies),
	}
}

// prefixOf returns the path prefix under which the API is mounted, as the client sees it. The prefix is empty if the API is at the root.
func prefixOf(c echo.Context, route Route) string {
	stripped := strings.TrimSuffix(access.RequestURL(c.Request()).Path, c.Request().URL.Path) // the part removed by http.StripPrefix
	return stripped + strings.TrimSuffix(c.Path(), route.Path)
}

// cookieName returns the name of the session cookie in browsers. Browsers send cookies to all ports of a host, so the name contains the
// port. Over TLS, the name has a prefix that stops other hosts and unencrypted responses from setting the cookie. At the root of the host,
// the prefix is __Host-. Below a path it is __Secure-, because a __Host- cookie must have the path /.
func (d *door) cookieName(request *http.Request, prefix string) string {
	name := access.SessionCookie
	if _, port, err := net.SplitHostPort(request.Host); err == nil && validPort.MatchString(port) {
		name += "_" + port
	}
	switch {
	case !usedTLS(request, d.opts.TrustedProxies):
		return name
	case prefix == "":
		return "__Host-" + name
	}
	return "__Secure-" + name
}

var validPort = regexp.MustCompile(`^[0-9]{1,5}$`)

// ownSession returns a copy of a request in which this dashboard's session cookie has the name [access.SessionCookie]. Other cookies with
// that name are removed.
func (d *door) ownSession(request *http.Request, prefix string) *http.Request {
	name := d.cookieName(request, prefix)
	if name == access.SessionCookie || request.Header.Get("Cookie") == "" {
		return request
	}
	var kept []string
	for _, line := range request.Header.Values("Cookie") {
		for one := range strings.SplitSeq(line, ";") {
			one = strings.TrimSpace(one)
			if is, value, _ := strings.Cut(one, "="); is == name {
				kept = append(kept, access.SessionCookie+"="+value)
			} else if is != access.SessionCookie {
				kept = append(kept, one)
			}
		}
	}
	request = request.Clone(request.Context())
	request.Header.Set("Cookie", strings.Join(kept, "; "))
	return request
}

// usedTLS reports whether a request arrived over TLS at this server or at a trusted proxy.
func usedTLS(r *http.Request, trusted Proxies) bool {
	return r.TLS != nil || trusted.Trusts(access.Peer(r)) && r.Header.Get("X-Forwarded-Proto") == "https"
}
