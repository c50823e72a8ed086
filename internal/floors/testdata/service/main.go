// Command service is a minimal program that runs jobs. Of this module's packages, it embeds only package runner.
package main

import (
	"context"
	"log"
	"net/http"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/runner"
)

type hello struct{ Name string }

func (hello) Kind() string { return "hello" }

func main() {
	pool, err := pgxpool.New(context.Background(), os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	r, err := runner.New(pool, runner.Options{})
	if err != nil {
		log.Fatal(err)
	}
	runner.Handle(r, func(context.Context, *runner.Job[hello]) (*runner.Outcome, error) { return nil, nil })
	go func() { log.Fatal(http.ListenAndServe("127.0.0.1:8080", nil)) }()
	log.Fatal(r.Run(context.Background()))
}
