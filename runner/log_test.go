package runner_test

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// debugging returns a logger for all levels, and its output.
func debugging() (*slog.Logger, *podtest.Log) {
	var p podtest.Log
	return slog.New(slog.NewTextHandler(&p, &slog.HandlerOptions{Level: slog.LevelDebug})), &p
}

const canary = "canary-0f6c2e9b"

// secret holds a job's secret arguments. Then selects the handler's outcome.
type secret struct {
	Password string `json:"password"`
	Then     string `json:"then"`
}

func (secret) Kind() string { return "secret" }

// other has the same kind as secret, but cannot decode its arguments.
type other struct {
	Password int `json:"password"`
}

func (other) Kind() string { return "other" }

func TestLogWithoutArgsOrResults(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	log, said := debugging()
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{Logger: log}, nil)
	runner.Handle(r, func(_ context.Context, j *runner.Job[secret]) (*runner.Outcome, error) {
		switch j.Args.Then {
		case "fail":
			return nil, errors.New("the handler's own words")
		case "panic":
			panic("the handler's own panic")
		case "chain":
			return runner.Then(secret{Password: canary}).Result(canary), nil
		case "fan":
			return runner.FanOut(secret{Password: canary}, secret{Password: canary, Then: "fail"}), nil
		case "large":
			return runner.Done(strings.Repeat(canary, job.MaxResultBytes/len(canary)+1)), nil
		case "again":
			if j.Attempt() == 1 {
				return nil, job.RetryAfter(0, errors.New("not yet"))
			}
		}
		return runner.Done(canary), nil
	})
	runner.Handle(r, func(context.Context, *runner.Job[other]) (*runner.Outcome, error) { return nil, nil })
	run(t, r)
	for _, then := range []string{"", "fail", "panic", "chain", "fan", "large", "again"} {
		enqueue(t, r, secret{Password: canary, Then: then}, runner.MaxAttempts(2))
	}
	enqueue(t, r, rawArgs("other", `{"password":"`+canary+`"}`)) // these arguments cannot be decoded
	quiet(t, pool)
	_, err := r.Enqueue(t.Context(), rawArgs("secret", `{"password":"`+canary)) // these arguments cannot be encoded
	is.True(errors.Is(err, job.ErrInvalidArgs))
	is.True(!strings.Contains(err.Error(), canary)) // the returned error contains no secret, because the caller may log it
	pgtest.Wait(t, "the log has the failures", func() bool {
		return strings.Count(said.String(), "job failed and will be retried") >= 1 && strings.Contains(said.String(), "job failed\"")
	})
	is.True(strings.Contains(said.String(), "level=DEBUG")) // all levels are logged
	is.True(!strings.Contains(said.String(), canary))       // no data of the job is logged
}

func TestLogLineInjection(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	log, said := debugging()
	pool := pgtest.Pool(t)
	const forged = "k\r\ntime=2020-01-01T00:00:00Z level=ERROR msg=\"forged\" job_id=1\n"
	r := start(t, pool, runner.Options{Logger: log, PodName: forged, Version: forged}, map[string]handler{
		"k": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			if j.Attempt() == 1 {
				return nil, job.RetryAfter(0, errors.New(forged))
			}
			panic(forged)
		},
	})
	id := enqueue(t, r, rawArgs("k"), runner.MaxAttempts(2), runner.Subject(forged), runner.Submitter(forged))
	is.Equal(waitEnded(t, r, id).State, job.Failed)
	pgtest.Wait(t, "the log contains the end", func() bool { return strings.Contains(said.String(), `msg="job failed"`) })
	line := regexp.MustCompile(`^time=202[^ ]+ level=(DEBUG|INFO|WARN|ERROR) msg=("[^"]+"|\S+)( |$)`)
	for _, l := range strings.Split(strings.TrimSuffix(said.String(), "\n"), "\n") {
		is.True(line.MatchString(l))                  // each line is a regular log line
		is.True(!strings.Contains(l, `msg="forged"`)) // no text from a job forms a separate line
	}
}

func TestLogLineEndReason(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	log, said := debugging()
	r := start(t, pgtest.Pool(t), runner.Options{Logger: log}, map[string]handler{
		"k": func(context.Context, *raw) (*runner.Outcome, error) { return nil, errors.New("no") },
	})
	enqueue(t, r, rawArgs("k"), runner.MaxAttempts(2))
	pgtest.Wait(t, "the log contains the end", func() bool { return strings.Contains(said.String(), `msg="job failed"`) })
	is.True(strings.Contains(said.String(), " reason=attempts_exhausted"))
}

func TestLogLineTraceID(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	log, said := debugging()
	pool, traces := pgtest.Pool(t), recorder()
	r := start(t, pool, runner.Options{Logger: log, TracerProvider: traces}, map[string]handler{
		"k": func(context.Context, *raw) (*runner.Outcome, error) { return nil, errors.New("no") },
	})
	enqueue(t, r, rawArgs("k"))
	run := traces.one(t, "run k")
	is.True(strings.Contains(said.String(), "trace_id="+run.SpanContext().TraceID().String()+" span_id="+run.SpanContext().SpanID().String()))
}
