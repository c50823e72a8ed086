package api

import (
	"cmp"
	"errors"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/runner"
)

// Options configure [Mount]. One of Authenticate and InsecureAllowAll is needed; otherwise the zero value works.
type Options struct {
	// Authenticate finds out who sends a request: the host's own sessions, or one of [TokenFile], [JWT] and [ProxyHeader]. Its error is
	// a 401; the text of it goes to the log only.
	Authenticate func(*http.Request) (Principal, error)
	// InsecureAllowAll lets everybody who reaches the API do everything, when there is no Authenticate: for tests, and where something
	// in front decides who may come here.
	InsecureAllowAll bool
	// Operator names the principal of every request under InsecureAllowAll. Default "api".
	Operator string
	// OnFailure receives the error behind each answer of 499 or above, which the answer itself does not show. Default: it is only logged.
	OnFailure func(*http.Request, error)
	// Login begins the session of a browser that shows a token at /ui/login: what its cookie holds, and when it ends. Authenticate has to
	// believe that. Default: there is no such page, as behind a proxy or with sessions of the host's own.
	Login func(token string) (session string, until time.Time, err error)
	// TrustedProxies are believed when they say, in X-Forwarded-For and X-Forwarded-Proto, where a request comes from. Default: none.
	TrustedProxies Proxies
	// MaxBodyBytes bounds a request's body. Default 4 MiB: arguments of 1 MiB, and more of them in a chain.
	MaxBodyBytes int64
	// Secrets are hidden in the arguments and results of all kinds from those who lack the permission jobs:args: JSON pointers in which *
	// stands for every member and every element, such as /password. They are beside what the kinds themselves say, by the tag
	// `secret:"true"` of their arguments' fields or by runner.Secrets; of kinds that this pod knows nothing of, all values are hidden.
	Secrets []string
	// ChangesPerSecond and ChangesBurst bound how many requests that change something are let through for each principal, and for each
	// client address: so many a second, and a burst after a rest. Default 1,000 and 5,000; below 0, there is no bound. They hold for
	// this pod. Unauthenticated requests, and such calls of remote workers, have separate limits of the same size for each address: they
	// do not use up those of authenticated callers.
	ChangesPerSecond float64
	ChangesBurst     int
	// LoopbackOnly refuses requests whose Host is neither localhost nor a loopback address, so that a web page cannot
	// reach an API without permissions by pointing a name of its own at 127.0.0.1.
	LoopbackOnly bool
	// Hosts are further names that LoopbackOnly lets through: those that a proxy on this machine passes on.
	Hosts []string
	// Streams bounds the live streams.
	Streams StreamOptions
}

func (o Options) withRates() Options {
	if o.ChangesPerSecond == 0 {
		o.ChangesPerSecond = 1000
	}
	if o.ChangesBurst <= 0 {
		o.ChangesBurst = 5000
	}
	return o
}

// Principal is who sends a request, and the roles that he has beside those of the table of grants.
type Principal = access.Principal

// allowAll authenticates every request as one principal that may do everything.
func (o Options) allowAll(*http.Request) (Principal, error) {
	return Principal{Name: cmp.Or(o.Operator, "api"), Roles: []string{access.PlatformAdmin}}, nil
}

// server is the API over one runner.
type server struct {
	r       *runner.Runner
	lists   *store.Store // for what may be long or slow to read, so that commands need not wait for it
	opts    Options
	pages   *http.CrossOriginProtection
	rights  *rights
	masks   *masks
	streams openStreams

	strangers *strangers

	openapi                     []byte // the document
	refusals                    *refusals
	readings                    *readings
	clients, principals, logins *buckets
}

// Mount adds the routes to g. Requests that change something must not come from another origin's page. It panics, as everything that
// is wired wrong, when nothing says who may use the API.
func Mount(g *echo.Group, r *runner.Runner, o Options) { mount(g, r, o, routes) }

func mount(g *echo.Group, r *runner.Runner, o Options, routes []Route) {
	if o.MaxBodyBytes <= 0 {
		o.MaxBodyBytes = 4 << 20
	}
	open := o.Authenticate == nil
	switch {
	case !open:
	case o.InsecureAllowAll:
		o.Authenticate = o.allowAll
	default:
		panic("api: nobody says who may use the API: set Options.Authenticate, or InsecureAllowAll")
	}
	o = o.withRates()
	o.Streams = o.Streams.withDefaults()
	s := &server{
		strangers: newStrangers(o), r: r, lists: r.Store().Modest(2), opts: o, pages: http.NewCrossOriginProtection(), rights: newRights(r.Store()),
		refusals: newRefusals(r.Store()), readings: newReadings(r.Store(), open),
		clients: newBuckets(o.ChangesPerSecond, o.ChangesBurst), principals: newBuckets(o.ChangesPerSecond, o.ChangesBurst),
		logins: newBuckets(1, 20), masks: newMasks(r, o.Secrets),
	}
	var err error
	if s.openapi, err = openAPI(routes); err != nil {
		panic("api: describe the routes: " + err.Error())
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(r.Metrics(), s.strangers.counted, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	for _, route := range routes {
		g.Add(route.Method, route.Path, s.serve(strict(route)))
	}
	s.mountDashboard(g)
	shown := promhttp.HandlerFor(metrics, promhttp.HandlerOpts{})
	g.GET("/metrics", s.serve(Route{Method: http.MethodGet, Path: "/metrics", Needs: access.Nothing, do: func(_ *server, c echo.Context) error {
		shown.ServeHTTP(c.Response(), c.Request())
		return nil
	}}))
}

// serve guards a route and answers its errors itself, whatever error handler the host's echo has.
func (s *server) serve(to Route) echo.HandlerFunc {
	return func(c echo.Context) error {
		c = plain{c}
		asMeant(c)
		secure(c.Response().Header())
		err := survive(c, func() error {
			err := s.checkReads(to)
			if err == nil {
				err = s.admit(c, to)
			}
			if err == nil {
				err = legible(c)
			}
			if err != nil {
				return err
			}
			c.Request().Body = http.MaxBytesReader(c.Response(), c.Request().Body, s.opts.MaxBodyBytes)
			return to.do(s, c)
		})
		if err != nil {
			s.refusals.note(c.Request(), to, err)
			s.failed(c.Request(), err)
			HandleError(err, c)
		}
		return nil
	}
}

// failed hands the error behind an answer to the host.
func (s *server) failed(request *http.Request, err error) {
	if p := problemOf(err); s.opts.OnFailure != nil && p.status >= clientClosedRequest {
		s.opts.OnFailure(request, cmp.Or(p.err, err))
	}
}

// guard refuses requests that a page of somebody else's may have sent.
func (s *server) guard(request *http.Request, to Route) error {
	if s.opts.LoopbackOnly && !loopback(request.Host) && !slices.Contains(s.opts.Hosts, nameOf(request.Host)) {
		return &problem{status: http.StatusForbidden, code: "forbidden", message: "this server answers on loopback names only",
			detail: "call it as 127.0.0.1 or localhost", refused: true}
	}
	err := s.pages.Check(request)
	if err == nil && to.changes() {
		err = ofAPage(request)
	}
	if err != nil {
		return &problem{status: http.StatusForbidden, code: "forbidden", message: "a page of another origin may not do this", detail: err.Error(), refused: true}
	}
	return nil
}

// nameOf is a Host header without its port.
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

// tooLarge reports whether err is that of a body beyond its limit.
func tooLarge(err error) bool {
	_, ok := errors.AsType[*http.MaxBytesError](err)
	return ok
}
