package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/api/ui"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/doctor"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	"github.com/trapeze-run/trapeze/job"
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
		return nil, &problem{Status: http.StatusNotFound, Code: "not_found", Message: "sessions are disabled"}
	}
	if err := checkMedia(c, "application/x-www-form-urlencoded"); err != nil {
		return nil, err // a body in another format is not a wrong token
	}
	if err := c.Request().ParseForm(); err != nil {
		if _, ok := errors.AsType[*problem](err); ok {
			return nil, err
		}
		return nil, invalid("invalid form: %v", err)
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
		no := &problem{Status: http.StatusUnauthorized, Code: "unauthenticated", Message: "unknown or expired token", Err: err, Refused: true}
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

// pageRoutes returns the dashboard's routes below /ui/. The pages do their own permission checks and report errors as HTML.
func (s *service) pageRoutes() []Route {
	pages := ui.New(ui.Options{Store: s.lists, Calendar: s.r.Admin(""), Visitor: s.visitor, Shown: s.jobShown, ShownSchedule: s.scheduleShown, Searched: s.secrets.searched, Sessions: s.opts.Login != nil,
		Challenge: s.opts.Challenge, FourEyes: s.fourEyes(), Examine: s.findings, Locks: s.locks, EngineUse: inside.Of(s.r).Pod.AddEngineUse, Retention: s.retentionSettings(), Limits: s.limitSettings()})
	return []Route{
		{Method: http.MethodGet, Path: "/ui", Needs: access.Nothing, do: func(c *call) (any, error) {
			ui.Redirect(c.Response(), c.Request(), "ui/now") // not to /ui/, because the host's middleware may remove the slash
			return nil, nil
		}},
		{Method: http.MethodGet, Path: "/ui/*", Needs: access.Nothing, do: func(c *call) (any, error) {
			below := c.Request().Clone(c.ctx())
			below.URL.Path, below.URL.RawPath = "/"+c.Param("*"), ""
			pages.ServeHTTP(c.Response(), below)
			return nil, nil
		}},
	}
}

// jobShown returns a job without the secrets that the visitor may not see.
func (s *service) jobShown(request *http.Request, reader access.Principal, j job.JobRow) (job.JobRow, error) {
	v := s.secrets.view(reader)
	shown := v.hideJob(j)
	inside.Of(s.r).Pod.NameEngine(request.Context(), &shown)
	return shown, s.secrets.note(request, v, "job "+idText(j.ID))
}

// scheduleShown returns a schedule without the secrets that the visitor may not see.
func (s *service) scheduleShown(request *http.Request, reader access.Principal, name string, setting job.ScheduleSetting) (job.ScheduleSetting, error) {
	v := s.secrets.view(reader)
	shown := v.hideSetting(name, setting)
	return shown, s.secrets.note(request, v, "schedule "+name)
}

// visitor authenticates the sender of a page request.
func (s *service) visitor(request *http.Request) (access.Principal, error) {
	if s.cutOff() {
		return access.Principal{}, store.ErrCutOff
	}
	p, err := s.door.who(request)
	if no, ok := errors.AsType[*problem](err); ok && (no.Status == http.StatusUnauthorized || no.Status == http.StatusTooManyRequests) {
		err = fmt.Errorf("%w: %w", access.ErrUnauthenticated, err)
	}
	return p, err
}

// findings runs doctor's checks for the dashboard.
func (s *service) findings(ctx context.Context) ([]doctor.Finding, error) {
	return inside.Of(s.r).Pod.Examine(ctx, s.lists, doctor.Thresholds{Transaction: doctor.DefaultThreshold, Overdue: doctor.DefaultThreshold})
}

// locks runs doctor's check of locks for the dashboard. It uses the pod's own connections, because slow reads may occupy the others.
func (s *service) locks(ctx context.Context) ([]doctor.Finding, error) {
	return doctor.Locks(ctx, inside.Of(s.r).Store)
}

// nameLock adds the sessions that hold locks to the response to a request that waited for one, if the caller may see doctor's findings.
func (s *service) nameLock(ctx context.Context, err error) error {
	if allowed, own := access.Of(ctx).Can(access.WorkersView); !allowed || own {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	p := *problemOf(err)
	found, unread := s.locks(asking)
	for _, f := range found {
		if unread == nil && f.Status == doctor.Failing {
			p.Detail += "; " + f.Says + ": " + f.Do
		}
	}
	return &p
}

// retentionSettings lists this pod's retention settings for finished jobs and events.
func (s *service) retentionSettings() []ui.Setting {
	o := inside.Of(s.r).Pod.Options()
	return []ui.Setting{
		{Name: "Succeeded jobs", Value: ui.Lasting(max(o.RetainSucceeded, 0), "forever"), Variable: "TRAPEZE_RETENTION_SUCCEEDED"},
		{Name: "Failed jobs", Value: ui.Lasting(max(o.RetainFailed, 0), "forever"), Variable: "TRAPEZE_RETENTION_FAILED"},
		{Name: "Cancelled jobs", Value: ui.Lasting(max(o.RetainCancelled, 0), "forever"), Variable: "TRAPEZE_RETENTION_CANCELLED"},
		{Name: "Events", Value: ui.Lasting(max(o.RetainEvents, 0), "forever"), Variable: "TRAPEZE_RETENTION_EVENTS"},
	}
}

// limitSettings lists this pod's limits on jobs and API requests.
func (s *service) limitSettings() []ui.Setting {
	o, approval, rate := inside.Of(s.r).Pod.Options(), "any approver", "no limit"
	if o.FourEyes {
		approval = "a person other than the submitter"
	}
	if s.opts.ChangesPerSecond >= 0 {
		rate = fmt.Sprintf("%g a second, %d in a burst", s.opts.ChangesPerSecond, s.opts.ChangesBurst)
	}
	return []ui.Setting{
		{Name: "Attempts of a job", Value: fmt.Sprint(o.MaxAttempts), Variable: "TRAPEZE_MAX_ATTEMPTS"},
		{Name: "Crashes of a job's pods", Value: fmt.Sprint(o.MaxCrashes), Variable: "TRAPEZE_MAX_CRASHES"},
		{Name: "Duration of a run", Value: ui.Lasting(o.Timeout, "no limit"), Variable: "TRAPEZE_TIMEOUT"},
		{Name: "Run without activity", Value: ui.Lasting(o.InactivityTimeout, "no limit"), Variable: "TRAPEZE_INACTIVITY_TIMEOUT"},
		{Name: "Age of a job since it became due", Value: ui.Lasting(o.MaxAge, "no limit"), Variable: "TRAPEZE_MAX_AGE"},
		{Name: "Wait for approval", Value: ui.Lasting(o.ApprovalTTL, "no limit"), Variable: "TRAPEZE_APPROVAL_TTL"},
		{Name: "Approval by", Value: approval, Variable: "TRAPEZE_FOUR_EYES"},
		{Name: "Children of a fan-out", Value: fmt.Sprint(o.MaxFanOut)},
		{Name: "Interval of a schedule", Value: "at least " + ui.Lasting(o.MinScheduleInterval, "0s"), Variable: "TRAPEZE_MIN_SCHEDULE_INTERVAL"},
		{Name: "Slots", Value: fmt.Sprint(o.Slots), Variable: "TRAPEZE_SLOTS"},
		{Name: "Changes by a principal or from an address", Value: rate},
		{Name: "Size of a request", Value: fmt.Sprintf("%d KiB", s.opts.MaxBodyBytes>>10)},
		{Name: "Streams", Value: fmt.Sprintf("%d, %d of a principal", s.opts.Streams.Most, s.opts.Streams.MostEach)},
	}
}
