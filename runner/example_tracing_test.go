package runner_test

import (
	"context"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5/pgxpool"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

type Fetch struct{ URL string }

func (Fetch) Kind() string { return "fetch" }

type Index struct{ Pages int }

func (Index) Kind() string { return "index" }

// A pipeline forms one trace, starting with its submission. This example keeps the spans in memory. A real program configures the provider
// with an exporter, or calls otel.SetTracerProvider instead of setting the option.
func Example_tracing() {
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))

	url, drop := pgtest.ExampleURL()
	defer drop()
	ctx, cancel := context.WithCancel(context.Background())
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	r, err := runner.New(pool, runner.Options{TracerProvider: provider})
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	ended := make(chan struct{})
	runner.Handle(r, func(ctx context.Context, j *runner.Job[Fetch]) (*runner.Outcome, error) {
		_, span := provider.Tracer("example").Start(ctx, "GET") // a child of the run's span, which is in ctx
		defer span.End()
		return runner.Then(Index{Pages: 1}), nil
	})
	runner.Handle(r, func(ctx context.Context, j *runner.Job[Index]) (*runner.Outcome, error) {
		close(ended)
		return nil, nil
	})
	stopped := make(chan error, 1)
	go func() { stopped <- r.Run(ctx) }()

	if _, err := r.Enqueue(ctx, Fetch{URL: "https://example.org"}); err != nil {
		log.Fatal(err)
	}
	<-ended
	cancel()
	if err := <-stopped; err != nil {
		log.Fatal(err)
	}
	all := spans.GetSpans()
	for span := range all { // prints the tree of spans, starting with the root
		if !all[span].Parent.IsValid() {
			tell(all, all[span], "")
		}
	}
	// Output:
	// enqueue fetch
	//   run fetch
	//     GET
	//     run index
}

func tell(all tracetest.SpanStubs, one tracetest.SpanStub, indent string) {
	fmt.Println(indent + one.Name)
	for _, child := range all {
		if child.Parent.SpanID() == one.SpanContext.SpanID() {
			tell(all, child, indent+"  ")
		}
	}
}
