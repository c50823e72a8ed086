// Command orders is a small order service. Each order is charged, reserved and shipped, or else refunded. README.md contains a tour.
//
//	main.go      the program: database, runner, HTTP server
//	http.go      the endpoints: place, approve, cancel and read orders; the payment provider's webhook
//	fulfil.go    an order's pipeline: charge, reserve, ship, and the steps that undo them
//	report.go    the daily report: one job per region, and a join
//	provider.go  simulates the payment provider, which is another company
//	database.go  the service's own tables, and a PostgreSQL server if DATABASE_URL is not set
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/migrate"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("DATABASE_URL"), "127.0.0.1:8090", os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// service holds the dependencies of handlers and endpoints.
type service struct {
	pool     *pgxpool.Pool
	provider string // URL of the payment provider
	address  string // URL of this service, where the provider sends its webhooks
}

// options returns the options of every pod. All pods together send at most two concurrent requests to the payment provider. The other kinds
// also need a lane, because a step without one runs in the previous step's lane.
func options() runner.Options {
	two := 2
	return runner.Options{Lanes: []runner.LaneSetup{
		{Name: "payments", Slots: &two, Kinds: []string{"charge", "refund"}},
		{Name: "warehouse", Kinds: []string{"reserve", "ship", "release"}},
	}}
}

// run serves until ctx is cancelled. It prints the service's URLs.
func run(ctx context.Context, database, address string, out io.Writer) error {
	database, closeDatabase, err := openDatabase(ctx, database)
	if err != nil {
		return err
	}
	defer closeDatabase()
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := errors.Join(migrate.Up(ctx, pool, options()), createTables(ctx, pool)); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	s := &service{pool: pool, address: "http://" + listener.Addr().String()}
	s.provider = s.address + "/provider"

	r, err := runner.New(pool, options())
	if err != nil {
		return err
	}
	defer r.Close()
	s.register(r)

	provider := newProvider()
	go provider.deliverEvery(ctx, 100*time.Millisecond)
	mux := http.NewServeMux()
	mux.Handle("/", s.endpoints(r))
	mux.Handle("/provider/", http.StripPrefix("/provider", provider))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	fmt.Fprintf(out, "orders at %s\nexport DATABASE_URL='%s'\n", s.address, database)
	return r.Run(ctx) // runs until ctx is cancelled, then drains
}
