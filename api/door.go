package api

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/admin"
	storeview "github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// door decides whether a request may use a route. It checks the request's origin and sender, and the sender's request rate. It is safe for
// concurrent use.
type door struct {
	opts      Options
	store     *store.Store
	pages     *http.CrossOriginProtection
	rights    *rights
	refusals  *refusals
	strangers *strangers

	clients, principals *buckets
}

func newDoor(st *store.Store, o Options) *door {
	return &door{
		opts: o, store: st, pages: http.NewCrossOriginProtection(), rights: newRights(st), refusals: newRefusals(st), strangers: newStrangers(st, o),
		clients: newBuckets(o.ChangesPerSecond, o.ChangesBurst), principals: newBuckets(o.ChangesPerSecond, o.ChangesBurst),
	}
}

// admit admits a request to a route and stores its caller in the context, or returns the reason for the rejection. It does not read the
// body.
func (d *door) admit(c echo.Context, route Route) error {
	from := d.origin(c)
	ctx := job.WithOrigin(c.Request().Context(), from)
	c.SetRequest(c.Request().WithContext(ctx))
	if err := d.guard(c.Request(), route); err != nil {
		return err
	}
	if route.Needs == access.Nothing {
		return nil
	}
	p, err := d.who(c.Request())
	if err != nil {
		return err
	}
	c.SetRequest(c.Request().WithContext(access.Into(ctx, p)))
	if route.changes() { // checked after authentication, so that unauthenticated callers do not use up other callers' limit at the same address
		if err := d.clients.enforce(neighbourhood(from.Source)); err != nil {
			return err
		}
	}
	if err := d.may(ctx, p, route, c.Param("id")); err != nil || !route.changes() {
		return err
	}
	return d.principals.enforce(p.Name)
}

// recheck reauthenticates the sender of an admitted request, because a stream may outlive the sender's token and permissions.
func (d *door) recheck(c echo.Context, route Route) (access.Principal, error) {
	p, err := d.who(c.Request())
	if err != nil {
		return p, err
	}
	return p, d.may(c.Request().Context(), p, route, c.Param("id"))
}

// who returns a request's sender, including the sender's permissions.
func (d *door) who(request *http.Request) (access.Principal, error) {
	p, err := d.authenticate(request)
	if err != nil {
		return p, d.strangers.refuse(request, d.client(request), err)
	}
	known, err := d.rights.of(request.Context(), p)
	return p.With(known.rights).Capped(known.caps), err
}

// authenticate returns the principal that sent a request. The principal's permissions are not filled in yet.
func (d *door) authenticate(request *http.Request) (access.Principal, error) {
	p, err := d.opts.Authenticate(request)
	if err == nil && !(d.opts.open && p.Name == access.Everyone) {
		err = p.Validate()
	}
	return p, err
}

// audit writes an audit entry for an action before it is performed. If it returns an error, the action must not be performed.
func (d *door) audit(ctx context.Context, entry admin.AuditEntry) error {
	if err := admin.Audit(ctx, d.store, entry); err != nil {
		return unrecorded("the request", err)
	}
	return nil
}

// may returns an error if a principal may not use a route on the job or pipeline in the route's path.
func (d *door) may(ctx context.Context, p access.Principal, route Route, id string) error {
	own := false
	for _, permission := range route.permissions() {
		allowed, only := p.Can(permission)
		if !allowed {
			return forbidden("permission %s is required", permission)
		}
		own = own || only
	}
	switch {
	case !own || route.scope == ownJobs:
		return nil
	case route.scope == jobInPath:
		return d.mustOwn(ctx, p, id)
	}
	return forbidden("your permissions cover only your own jobs")
}

// mustOwn returns an error if a job belongs to another principal. The error is the same as for a job that does not exist.
func (d *door) mustOwn(ctx context.Context, p access.Principal, jobID string) error {
	id, err := text.ParseJobID(jobID)
	if err != nil {
		return err
	}
	owner, err := storeview.Owner(ctx, d.store, id)
	if err == nil && owner != p.Name {
		p := *problemOf(fmt.Errorf("read job %d: %w", id, job.ErrNotFound))
		p.Refused = true
		return &p
	}
	return err
}

// guard rejects requests that may come from a page on another origin and, with LoopbackOnly, requests from other machines.
func (d *door) guard(request *http.Request, route Route) error {
	if d.opts.LoopbackOnly && !loopback(request.Host) && !slices.Contains(d.opts.Hosts, nameOf(request.Host)) {
		return &problem{Status: http.StatusForbidden, Code: "forbidden", Message: "this server accepts only loopback host names",
			Detail: "use 127.0.0.1 or localhost", Refused: true}
	}
	if peer := access.Peer(request); d.opts.LoopbackOnly && peer.IsValid() && !peer.IsLoopback() { // the Host header is easy to forge
		return &problem{Status: http.StatusForbidden, Code: "forbidden", Message: "this server accepts only local connections",
			Detail: "connect from the server's machine, or ask its operator to set up authentication", Refused: true}
	}
	err := d.pages.Check(request)
	if err != nil && request.Header.Get("Sec-Fetch-Site") == "" { // browsers leave it out without TLS
		err = fmt.Errorf("%w; if a proxy has rewritten Host, let it keep the client's (nginx: proxy_set_header Host $http_host), or use TLS", err)
	}
	if err == nil && usedTLS(request, d.opts.TrustedProxies) && strings.HasPrefix(request.Header.Get("Origin"), "http:") {
		err = errors.New("the page was not loaded over TLS") // the check above ignores the scheme
	}
	if err == nil && route.changes() {
		err = requirePageOrigin(request)
	}
	if err != nil {
		return &problem{Status: http.StatusForbidden, Code: "forbidden", Message: "cross-origin requests are refused", Detail: err.Error(), Refused: true}
	}
	return nil
}

// requirePageOrigin rejects a request that has a session cookie, but neither a token nor a header that names its origin. Browsers send one
// of these headers with every request that changes something. Other clients must send a token.
func requirePageOrigin(r *http.Request) error {
	if r.Header.Get("Authorization") != "" || r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" {
		return nil
	}
	if _, err := r.Cookie(access.SessionCookie); err == nil {
		return errors.New("a session needs a browser that sends Origin or Sec-Fetch-Site: send a token instead")
	}
	return nil
}

// nameOf returns the host name in a Host header, without the port.
func nameOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return host
}

// loopback reports whether a Host header names this machine's loopback interface.
func loopback(host string) bool {
	host = nameOf(host)
	if len(host) > 2 && host[0] == '[' && host[len(host)-1] == ']' {
		host = host[1 : len(host)-1]
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// maxReason is the maximum length of a stored reason, in bytes.
const maxReason = 500

// origin returns the source, ID and reason of a request, for the audit log.
func (d *door) origin(c echo.Context) job.Origin {
	return job.Origin{Source: d.client(c.Request()), RequestID: requestID(c), Reason: job.Storable(c.Request().Header.Get("X-Reason"), maxReason)}
}

// originOfCall is like origin, but for a call from a remote worker.
func (d *door) originOfCall(request *http.Request) job.Origin {
	id := request.Header.Get(echo.HeaderXRequestID)
	if !validRequestID.MatchString(id) {
		id = rand.Text()
	}
	return job.Origin{Source: d.client(request), RequestID: id}
}

// client returns the address from which a request was sent.
func (d *door) client(request *http.Request) string {
	if addr := d.opts.TrustedProxies.Client(request); addr.IsValid() {
		return addr.String()
	}
	return request.RemoteAddr
}

// rightsFor is the lifetime of cached roles and grants. A change takes effect immediately on the pod that makes it, and within rightsFor on
// other pods. A change made with plain SQL takes effect on every pod within rightsFor.
const rightsFor = 2 * time.Second

// maxRights is the maximum number of principals whose permissions are cached.
const maxRights = 4096

// rights computes permissions from the roles in a principal's token and in the grants table. It is safe for concurrent use.
type rights struct {
	store *store.Store

	mu      sync.Mutex
	known   map[string]cachedRights
	forgets int // number of calls of forget; rights read before a call are not cached after it
}

type cachedRights struct {
	rights access.Rights
	caps   access.Caps
	until  time.Time
}

func newRights(st *store.Store) *rights { return &rights{store: st, known: map[string]cachedRights{}} }

// of returns a principal's permissions and caps. A role that does not exist grants nothing.
func (r *rights) of(ctx context.Context, p access.Principal) (cachedRights, error) {
	key := strings.Join(append([]string{p.Name}, p.Roles...), "\x00")
	r.mu.Lock()
	found, ok := r.known[key]
	forgets := r.forgets
	r.mu.Unlock()
	now := time.Now()
	if ok && now.Before(found.until) {
		return found, nil
	}
	granted, custom, err := admin.RolesOf(ctx, r.store, p.Name, p.Roles)
	if err != nil {
		return cachedRights{}, err
	}
	var roles []access.Role
	for _, one := range custom {
		roles = append(roles, roleOf(one))
	}
	for _, name := range slices.Concat(p.Roles, granted) {
		if role, ok := access.BuiltInRole(name); ok {
			roles = append(roles, role)
		}
	}
	all := cachedRights{access.RightsOf(roles...), access.CapsOf(roles...), now.Add(rightsFor)}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) >= maxRights {
		clear(r.known)
	}
	if r.forgets == forgets {
		r.known[key] = all
	}
	return all, nil
}

// forget drops the cached permissions of every principal.
func (r *rights) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.known)
	r.forgets++
}

// roleOf converts a row of the role table. Permissions that this release does not know are ignored.
func roleOf(one admin.Role) access.Role {
	role := access.Role{Name: one.Name, Scope: access.Own, Caps: access.Caps{Priority: one.MaxPriority, Attempts: one.MaxAttempts}}
	if one.MaxDelayMS != nil {
		role.Caps.Delay = new(time.Duration(*one.MaxDelayMS) * time.Millisecond)
	}
	if one.Scope == string(access.All) {
		role.Scope = access.All
	}
	for _, what := range one.Permissions {
		role.Permissions = append(role.Permissions, access.Permission(what))
	}
	return role
}

// Worker is a principal that may run jobs as a remote worker.
type Worker struct {
	Name string
	Kind func(name string) bool // reports whether the worker may run a kind
	Lane func(name string) bool // reports whether the worker may claim from a lane

	// Refused records in the audit log that the worker requested a kind that it may not run.
	Refused func(why string)
}

// Workers returns a function that authenticates calls from remote workers. Calls are authenticated like API requests, and the principal
// must have the workers:stream permission. The function returns gRPC errors.
func Workers(r *runner.Runner, o Options) func(*http.Request) (Worker, error) {
	return newDoor(inside.Of(r).Store, o.withDefaults()).worker
}

// worker authenticates a call from a remote worker. Rejections are audited as on other routes. Calls without valid credentials count
// against the limit for their address (see [strangers]). Admitted calls are not limited, because a worker sends heartbeats and writes
// frequently.
func (d *door) worker(request *http.Request) (Worker, error) {
	route := Route{Method: http.MethodPost, Path: request.URL.Path, Needs: access.WorkersStream}
	from := d.originOfCall(request)
	request = request.WithContext(job.WithOrigin(request.Context(), from))
	p, err := d.mayStream(request, route)
	if err == nil {
		request := request.WithContext(access.Into(request.Context(), p))
		refused := func(why string) { d.refusals.note(request, route, forbidden("%s", why)) }
		return Worker{Name: p.Name, Kind: p.MayRun, Lane: p.MayUse, Refused: refused}, nil
	}
	d.refusals.note(request.WithContext(access.Into(request.Context(), p)), route, err)
	switch is := problemOf(err); {
	case is.Status == http.StatusTooManyRequests:
		return Worker{}, connect.NewError(connect.CodeUnavailable, fmt.Errorf("too_often: %w", withDetail(err)))
	case is.Refused, is.Status == http.StatusUnauthorized, is.Status == http.StatusForbidden:
		code := connect.CodePermissionDenied
		if is.Status == http.StatusUnauthorized {
			code = connect.CodeUnauthenticated
		}
		return Worker{}, connect.NewError(code, withDetail(err))
	}
	return Worker{}, connect.NewError(connect.CodeUnavailable, errors.New("authentication is unavailable: try again"))
}

// mayStream admits a call from a remote worker, or returns the reason for the rejection. If it returns both an error and a principal, the
// principal lacks the permission.
func (d *door) mayStream(request *http.Request, route Route) (p Principal, err error) {
	if err := d.guard(request, route); err != nil {
		return p, err
	}
	if p, err = d.who(request); err != nil {
		return Principal{}, err
	}
	if may, _ := p.Can(route.Needs); !may {
		return p, forbidden("permission %s is required", route.Needs)
	}
	return p, nil
}

// withDetail returns an error whose text includes its detail, because gRPC transmits only the text.
func withDetail(err error) error {
	if p := problemOf(err); p.Detail != "" {
		return fmt.Errorf("%w: %s", err, p.Detail)
	}
	return err
}
