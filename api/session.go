package api

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/api/ui"
	"github.com/trapeze-run/trapeze/internal/access"
)

var sessionRoutes = []Route{
	{http.MethodPost, "/ui/login", access.Nothing, "Begin the session of a browser with the token in the form's field token", (*server).login},
	{http.MethodPost, "/ui/logout", access.Nothing, "End the session of a browser", (*server).logout},
}

// login answers a form with a cookie that stands for the token in it, and sends the browser on to the page that was asked for, or back
// to the form.
func (s *server) login(c echo.Context) error {
	if s.opts.Login == nil {
		return &problem{status: http.StatusNotFound, code: "not_found", message: "there are no sessions here"}
	}
	token := strings.TrimSpace(c.Request().PostFormValue("token")) // of the form alone: addresses stand in logs
	next := ui.Onward(c.Request().PostFormValue("next"))
	session, until, err := s.opts.Login(token)
	if err != nil {
		if err := within(c, s.logins, neighbourhood(s.client(c.Request()))); err != nil {
			return err // who has a token logs in all the same
		}
		no := &problem{status: http.StatusUnauthorized, code: "unauthenticated", message: "there is no such token", err: err, refused: true}
		if !wantsPage(c) {
			return no
		}
		s.refusals.note(c.Request(), Route{Method: http.MethodPost, Path: "/ui/login"}, no)
		return c.Redirect(http.StatusSeeOther, "login?"+back(next).Encode())
	}
	c.SetCookie(s.cookie(c, session, until))
	return s.onward(c, next)
}

// logout makes the browser forget its session.
func (s *server) logout(c echo.Context) error {
	c.SetCookie(s.cookie(c, "", time.Unix(1, 0)))
	return s.onward(c, "")
}

// back is what the form is asked for again with.
func back(next string) url.Values {
	asked := url.Values{"failed": {"1"}}
	if next != "" {
		asked.Set("next", next)
	}
	return asked
}

// onward sends a browser to a page of the dashboard, by its address from there on.
func (s *server) onward(c echo.Context, next string) error {
	if wantsPage(c) {
		return c.Redirect(http.StatusSeeOther, "./"+next)
	}
	return c.NoContent(http.StatusNoContent)
}

// wantsPage reports whether a person looks at the answer.
func wantsPage(c echo.Context) bool {
	return strings.Contains(c.Request().Header.Get("Accept"), "text/html")
}

// cookie is the session's: no script reads it, no other site's page sends it, and it does not leave the prefix of the API.
func (s *server) cookie(c echo.Context, value string, until time.Time) *http.Cookie {
	path := asked(c.Request())
	if cut := strings.LastIndex(path, "/ui/"); cut > 0 {
		path = path[:cut]
	} else {
		path = "/"
	}
	return &http.Cookie{ // #nosec G124 -- Secure whenever the request was
		Name: access.SessionCookie, Value: value, Path: path, Expires: until, HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: s.encrypted(c.Request()),
	}
}

// encrypted reports whether a request came through TLS: here, or at a proxy that is believed.
func (s *server) encrypted(r *http.Request) bool {
	return r.TLS != nil || s.opts.TrustedProxies.Believe(access.Peer(r)) && r.Header.Get("X-Forwarded-Proto") == "https"
}

// ofAPage reports whether a request that has a session, and no token, says which page it comes from. Every browser does so when
// something is to be changed; what does not is no browser, and has no business with a session.
func ofAPage(r *http.Request) error {
	if r.Header.Get("Authorization") != "" || r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" {
		return nil
	}
	if _, err := r.Cookie(access.SessionCookie); err == nil {
		return errors.New("a session is for browsers, which say where a request comes from: send a token instead")
	}
	return nil
}
