package api

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/api/ui"
	"github.com/trapeze-run/trapeze/internal/access"
)

var sessionRoutes = []Route{
	{Method: http.MethodPost, Path: "/ui/login", Needs: access.Nothing, Summary: "Start a browser session with the form field token",
		in: loginForm{}, form: true, statuses: []int{http.StatusNoContent, http.StatusSeeOther}, do: login},
	{Method: http.MethodPost, Path: "/ui/logout", Needs: access.Nothing, Summary: "End a browser session",
		statuses: []int{http.StatusNoContent, http.StatusSeeOther}, do: logout},
}

// loginForm is the form of the dashboard's login.
type loginForm struct {
	Token string `json:"token"`
	Next  string `json:"next,omitempty"` // the page that was asked for: its address from /ui/ on
}

// login answers a form with a cookie that stands for the token in it, and sends the browser on to the page that was asked for, or back
// to the form.
func login(c *call) (any, error) {
	if c.opts.Login == nil {
		return nil, &problem{status: http.StatusNotFound, code: "not_found", message: "sessions are disabled"}
	}
	token := strings.TrimSpace(c.Request().PostFormValue("token")) // of the form alone: logs have addresses
	next := ui.Onward(c.Request().PostFormValue("next"))
	session, until, err := c.opts.Login(token)
	if err != nil {
		if err := c.logins.enforce(neighbourhood(c.door.client(c.Request()))); err != nil {
			return nil, err // valid tokens are not limited
		}
		no := &problem{status: http.StatusUnauthorized, code: "unauthenticated", message: "unknown or expired token", err: err, refused: true}
		if !wantsPage(c) {
			return nil, no
		}
		c.door.refusals.note(c.Request(), c.to, no)
		return nil, c.Redirect(http.StatusSeeOther, "login?"+back(next).Encode())
	}
	c.SetCookie(c.sessionCookie(session, until))
	return nil, onward(c, next)
}

// logout makes the browser forget its session.
func logout(c *call) (any, error) {
	c.SetCookie(c.sessionCookie("", time.Unix(1, 0)))
	return nil, onward(c, "")
}

// back returns the query with which the form is shown again.
func back(next string) url.Values {
	asked := url.Values{"failed": {"1"}}
	if next != "" {
		asked.Set("next", next)
	}
	return asked
}

// onward sends a browser to a page of the dashboard, by its address from there on.
func onward(c echo.Context, next string) error {
	if wantsPage(c) {
		return c.Redirect(http.StatusSeeOther, "./"+next)
	}
	return c.NoContent(http.StatusNoContent)
}

// wantsPage reports whether the answer is for a browser's window.
func wantsPage(c echo.Context) bool {
	return strings.Contains(c.Request().Header.Get("Accept"), "text/html")
}

// sessionCookie is that of a session: no script reads it, no other site's page sends it, and it does not leave the prefix of the API.
func (c *call) sessionCookie(value string, until time.Time) *http.Cookie {
	path := askedPath(c.Request())
	if cut := strings.LastIndex(path, "/ui/"); cut > 0 {
		path = path[:cut]
	} else {
		path = "/"
	}
	return &http.Cookie{ // #nosec G124 -- Secure whenever the request was
		Name: access.SessionCookie, Value: value, Path: path, Expires: until, HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: encrypted(c.Request(), c.opts.TrustedProxies),
	}
}

// encrypted reports whether a request came through TLS: here, or at a trusted proxy.
func encrypted(r *http.Request, trusted Proxies) bool {
	return r.TLS != nil || trusted.Believe(access.Peer(r)) && r.Header.Get("X-Forwarded-Proto") == "https"
}
