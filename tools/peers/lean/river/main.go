// Command river is the program in internal/floors/testdata/service, but with River instead of Trapeze.
package main

import (
	"context"
	"log"
	"net/http"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
)

type hello struct{ Name string }

func (hello) Kind() string { return "hello" }

type worker struct{ river.WorkerDefaults[hello] }

func (worker) Work(context.Context, *river.Job[hello]) error { return nil }

func main() {
	pool, err := pgxpool.New(context.Background(), os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, worker{})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 8}}, Workers: workers,
	})
	if err != nil {
		log.Fatal(err)
	}
	go func() { log.Fatal(http.ListenAndServe("127.0.0.1:8080", nil)) }()
	if err := client.Start(context.Background()); err != nil {
		log.Fatal(err)
	}
	<-client.Stopped()
}
