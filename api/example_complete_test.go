package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

type (
	Render  struct{ Film string }
	Publish struct{ Film string }
)

func (Render) Kind() string  { return "render" }
func (Publish) Kind() string { return "publish" }

// Another system does this job's work. The handler passes the job's ID and token to that system, which completes the job over HTTP when the
// work is done. The token is the only credential that the system needs.
func Example_complete() {
	url, drop := pgtest.ExampleURL()
	defer drop()
	ctx, stop := context.WithCancel(context.Background())
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	r, err := runner.New(pool, runner.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	farm := make(chan [2]string, 1) // carries the ID and token to the other system
	runner.Handle(r, func(ctx context.Context, j *runner.Job[Render]) (*runner.Outcome, error) {
		token, err := j.Token(ctx)
		farm <- [2]string{fmt.Sprint(j.ID()), token}
		return runner.Deferred(1).Join(Publish(j.Args)), err // the job waits without occupying a slot or a goroutine
	})
	runner.Handle(r, func(ctx context.Context, j *runner.Job[Publish]) (*runner.Outcome, error) {
		for part, err := range j.Branches(ctx) {
			if err != nil {
				return nil, err
			}
			var rendered struct{ Frames int }
			_ = part.Result(&rendered)
			fmt.Println(j.Args.Film, part.State, rendered.Frames)
		}
		stop() // only this example stops here; a service would keep running
		return nil, nil
	})
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	service := httptest.NewServer(api.Handler(r, api.Options{InsecureAllowAll: true}))
	defer service.Close()

	if _, err := r.Enqueue(ctx, Render{Film: "Metropolis"}); err != nil {
		log.Fatal(err)
	}
	told := <-farm
	body, err := json.Marshal(map[string]any{"token": told[1], "result": map[string]int{"frames": 220_000}})
	if err != nil {
		log.Fatal(err)
	}
	answer, err := http.Post(service.URL+"/jobs/"+told[0]+"/complete", "application/json", strings.NewReader(string(body))) // #nosec G107 -- our own server
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		log.Fatal(answer.Status)
	}
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
	// Output: Metropolis succeeded 220000
}
