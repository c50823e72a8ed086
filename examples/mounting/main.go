// Command mounting is a web service that serves Trapeze's API, dashboard and sign-in under /trapeze on its own HTTP server. Its argument
// selects the router: echo, chi or http (default).
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/api"
	apienv "github.com/trapeze-run/trapeze/api/env"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/env"
	"github.com/trapeze-run/trapeze/runner/migrate"
)

// prefix is the path under which the service mounts Trapeze.
const prefix = "/trapeze"

// routers maps each router's name to a function that mounts the API in its routes.
var routers = map[string]func(*runner.Runner, api.Options) http.Handler{"echo": inEcho, "chi": inChi, "http": inMux}

func inEcho(r *runner.Runner, o api.Options) http.Handler {
	e := echo.New()
	e.GET("/hello", echo.WrapHandler(http.HandlerFunc(hello)))
	api.Mount(e.Group(prefix), r, o)
	return e
}

func inChi(r *runner.Runner, o api.Options) http.Handler {
	c := chi.NewRouter()
	c.Get("/hello", hello)
	c.Mount(prefix, http.StripPrefix(prefix, api.Handler(r, o))) // chi does not strip the prefix when it mounts other handlers
	return c
}

func inMux(r *runner.Runner, o api.Options) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello", hello)
	mux.Handle(prefix+"/", http.StripPrefix(prefix, api.Handler(r, o)))
	return mux
}

func hello(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, strings.Join(os.Args[1:], " ")); err != nil {
		log.Fatal(err)
	}
}

// serve runs the service until ctx is cancelled. The TRAPEZE_ variables configure it.
func serve(ctx context.Context, router string) error {
	config, err := env.Load()
	web, err2 := apienv.Load()
	if err := errors.Join(err, err2); err != nil {
		return err // all invalid variables, each by name
	}
	options, err := web.Options()
	secure, err2 := web.TLS()
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	mount := routers[router]
	if router == "" {
		mount = inMux
	}
	if mount == nil {
		return fmt.Errorf("router %q: want echo, chi or http", router)
	}
	pool, err := config.Open(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrate.Up(ctx, pool, config.Options); err != nil {
		return err
	}
	r, err := runner.New(pool, config.Options)
	if err != nil {
		return err
	}
	defer r.Close()
	server := &http.Server{
		Addr:              web.Addr,
		Handler:           mount(r, options),
		TLSConfig:         secure,
		ConnContext:       api.ConnContext,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      60 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
	ctx, stop := context.WithCancelCause(ctx)
	go func() {
		if secure == nil {
			stop(server.ListenAndServe())
		} else {
			stop(server.ListenAndServeTLS("", "")) // the certificate is in TLSConfig
		}
	}()
	err = r.Run(ctx) // runs until ctx is cancelled, then drains
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		err = errors.Join(err, cause) // the server stopped first, with this error
	}
	return errors.Join(err, server.Close())
}
