package api

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/trapeze-run/trapeze/api/ui"
	"github.com/trapeze-run/trapeze/internal/access"
	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/metrics"
)

// routes lists all routes except /metrics and the dashboard's pages. Each resource's routes are defined in a separate file. A test fails if
// a route lacks a permission or a summary.
var routes = slices.Concat(submissionRoutes, jobRoutes, jobCommandRoutes, manyRoutes, failureRoutes, kindRoutes, eraseRoutes, pipelineRoutes, historyRoutes, streamRoutes, exportRoutes, healthRoutes, laneRoutes,
	podRoutes, doctorRoutes, statsRoutes, scheduleRoutes, retentionRoutes, keyLimitRoutes, auditRoutes, roleRoutes, sessionRoutes, documentRoutes)

var documentRoutes = []Route{
	{Method: http.MethodGet, Path: "/openapi.json", Needs: access.Nothing, Summary: "Describe the API, as OpenAPI 3.1",
		do: func(c *call) (any, error) {
			document, err := c.openapi()
			if err != nil {
				return nil, err
			}
			return nil, c.JSONBlob(http.StatusOK, document)
		}},
}

// Routes returns the API's routes.
func Routes() []Route { return slices.Clone(routes) }

// Handler returns the API as an http.Handler, for hosts without echo. Use [http.StripPrefix] to remove a prefix. It panics under the same
// conditions as [Mount].
func Handler(r *runner.Runner, o Options) http.Handler {
	e := echo.New()
	e.HTTPErrorHandler = HandleError
	Mount(e.Group(""), r, o)
	return e
}

// Mount adds the routes to g. The routes reject requests from pages on other origins that would change something. Mount panics if o sets
// neither Authenticate nor InsecureAllowAll.
func Mount(g *echo.Group, r *runner.Runner, o Options) { mount(g, r, o, routes) }

func mount(g *echo.Group, r *runner.Runner, o Options, routes []Route) {
	o = o.withDefaults()
	s := &service{
		r: r, lists: inside.Of(r).Slow, opts: o, door: newDoor(inside.Of(r).Store, o), logins: newBuckets(1, 20),
		secrets: newSecrets(inside.Of(r).Secrets, o.Secrets, inside.Of(r).Store, o.open),
		openapi: sync.OnceValues(func() ([]byte, error) { return openAPIDocument(routes) }),
	}
	for _, route := range append(slices.Clip(routes), s.metricsRoute()) {
		g.Add(route.Method, route.Path, s.serve(route))
		g.Add(route.Method, route.Path+"/", noSlash)
	}
	for _, route := range s.pageRoutes() {
		g.Add(route.Method, route.Path, s.serve(route))
	}
}

// noSlash rejects a request whose path is a route with a slash at its end.
func noSlash(c echo.Context) error {
	HandleError(&problem{Status: http.StatusNotFound, Code: "not_found", Message: "no route has a slash at the end of its path", Detail: ui.SlashRemedy}, c)
	return nil
}

// metricsRoute returns the route that serves metrics to Prometheus.
func (s *service) metricsRoute() Route {
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.Collector(s.r), s.door.strangers.counted, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	shown := promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	return Route{Method: http.MethodGet, Path: "/metrics", Needs: access.Nothing, do: func(c *call) (any, error) {
		shown.ServeHTTP(c.Response(), c.Request())
		return nil, nil
	}}
}

// serve returns the echo handler of a route. It writes error responses itself, because a host's echo may have a different error handler.
func (s *service) serve(route Route) echo.HandlerFunc {
	answer := recovered(func(c echo.Context) error { return s.serveRoute(c, route) })
	return func(c echo.Context) error {
		c = plain{c}
		unescape(c)
		secure(c.Response().Header())
		if s.opts.HSTS && usedTLS(c.Request(), s.opts.TrustedProxies) && !loopback(c.Request().Host) {
			c.Response().Header().Set("Strict-Transport-Security", "max-age=31536000")
		}
		c.SetRequest(s.door.ownSession(c.Request(), prefixOf(c, route)))
		err := answer(c)
		if err == nil {
			return nil
		}
		begun := c.Response().Committed
		s.door.refusals.note(c.Request(), route, err)
		s.reportFailure(c.Request(), err)
		if problemOf(err).Status == http.StatusUnauthorized {
			c.Response().Header().Set("WWW-Authenticate", s.opts.Challenge)
		}
		HandleError(err, c)
		if begun && errors.Is(err, errPanic) {
			panic(http.ErrAbortHandler) // otherwise the client could mistake a partial response for a complete one
		}
		return nil
	}
}

// serveRoute admits a request, calls the route's handler and writes its response.
func (s *service) serveRoute(c echo.Context, route Route) error {
	if !route.changes() && route.Needs != access.Nothing && s.cutOff() { // changes are admitted, because they either fail or reach the new primary
		return &problem{Status: http.StatusServiceUnavailable, Code: "unavailable", Message: "this pod has lost its database connection: try again, or another pod",
			Err: store.ErrCutOff}
	}
	err := s.door.admit(c, route)
	if err == nil {
		err = checkText(c)
	}
	if err == nil {
		err = route.checkQuery(c.QueryParams())
	}
	if err != nil {
		return err
	}
	c.Request().Body = requestBody{http.MaxBytesReader(c.Response(), c.Request().Body, s.opts.MaxBodyBytes)}
	v, err := route.do(&call{Context: c, service: s, route: route, caller: access.Of(c.Request().Context())})
	if store.LockTimeout(err) {
		return s.nameLock(c.Request().Context(), err)
	}
	if err != nil || c.Response().Committed {
		return err
	}
	switch v := v.(type) {
	case nil:
		return c.NoContent(route.usualStatus())
	case reply:
		return c.JSON(v.status, v.body)
	}
	return c.JSON(route.usualStatus(), v)
}

// errPanic is the error for a handler that panicked.
var errPanic = errors.New("panic")

// recovered turns a panic into an error that is logged with the stack. Otherwise, net/http would close the connection and log the panic
// itself.
var recovered = middleware.RecoverWithConfig(middleware.RecoverConfig{
	StackSize: 64 << 10, DisableStackAll: true, DisableErrorHandler: true,
	LogErrorFunc: func(_ echo.Context, err error, stack []byte) error {
		return &problem{Status: http.StatusInternalServerError, Code: "internal", Message: "internal error: see the server's log",
			Err: fmt.Errorf("%w: %w\n%s", errPanic, err, stack)}
	},
})
