package runner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/admin"
)

// planted is a word that marks the data of the erased subject, wherever programs or operators can store it.
const planted = "PLANTED"

// tablesWith returns the tables and partitions of the schema that have a row containing the given word.
func tablesWith(t *testing.T, pool *pgxpool.Pool, word string) (list []string) {
	t.Helper()
	tables := column[string](t, pool, `select c.relname from pg_class c where c.relnamespace = 'trapeze'::regnamespace and c.relkind in ('r', 'm') order by 1`)
	if len(tables) < 30 {
		t.Fatalf("found only %d tables: %v", len(tables), tables)
	}
	for _, name := range tables {
		if n := queryOne[int](t, pool, fmt.Sprintf(`select count(*) from trapeze.%s r where r::text like '%%' || $1 || '%%'`, name), word); n > 0 {
			list = append(list, fmt.Sprintf("%s (%d)", name, n))
		}
	}
	return list
}

// erasable starts a pod whose handlers write the text from their arguments to every place that a handler can write to.
func erasable(t *testing.T, pool *pgxpool.Pool) *runner.Runner {
	fails := func(_ context.Context, j *raw) (*runner.Outcome, error) {
		return nil, job.Permanent(job.Code(strings.Trim(string(j.Args.JSON), `"`), errors.New(string(j.Args.JSON))))
	}
	return start(t, pool, runner.Options{}, map[string]handler{
		"nothing": succeed, "fails": fails,
		"works": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			text := string(j.Args.JSON)
			j.Progress(1, 2)
			j.Message(text)
			if err := j.Checkpoint(ctx, text); err != nil {
				return nil, err
			}
			return runner.Done(text).OnFailure(rawArgs("nothing", text)), j.Emit(ctx, "note", "info", text, map[string]string{"text": text})
		},
		"fans": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			text := string(j.Args.JSON)
			return runner.FanOut(rawArgs("works", text), runner.With(rawArgs("works", text), runner.Subject("child"))).Join(rawArgs("works", text)).Result(text), nil
		},
		"mixed": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			text := string(j.Args.JSON)
			return runner.FanOut(runner.With(rawArgs("works", text), runner.Subject(planted)), rawArgs("works", `"TZ"`)).Join(rawArgs("fails", `"TZ"`)), nil
		},
		"fast": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			return runner.FanOut(runner.With(rawArgs("works", string(j.Args.JSON)), runner.Subject(planted)), rawArgs("fails", `"TZ"`)).FailFast(), nil
		},
		"deferred": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			token, err := j.Token(ctx)
			j.Message(token)
			return runner.Deferred(1), err
		},
	})
}

func TestErasureInAllTables(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := erasable(t, pool)
	text := `"` + planted + `"`
	of1, key := runner.Subject(planted), runner.Key("key "+planted)
	submit := func(args job.Args, options ...runner.EnqueueOption) int64 {
		return enqueue(t, r, args, append(options, of1, key)...)
	}
	ctx := job.WithOrigin(t.Context(), job.Origin{Reason: "asked by " + planted})

	waitEnded(t, r, submit(rawArgs("works", text), runner.IdempotencyKey("i "+planted), runner.Unique("u "+planted, runner.WhileActive), runner.Pipeline("p "+planted)))
	failed := submit(rawArgs("fails", text), runner.OnFailure(runner.With(rawArgs("works", text), runner.Subject("follower"))))
	waitEnded(t, r, failed)
	chain := submit(runner.Chain(rawArgs("works", text), runner.With(rawArgs("works", text), runner.Subject("later")), rawArgs("fails", text)))
	waitPipeline(t, pool, chain)
	waitPipeline(t, pool, submit(rawArgs("fans", text), runner.Pipeline("fan")))
	// A job with another subject has a planned step with the erased subject; the step never runs.
	planner := enqueue(t, r, runner.Chain(rawArgs("fails", `"TZ"`), runner.With(rawArgs("works", text), of1)), runner.Subject("planner"))
	waitEnded(t, r, planner)
	// Only one of the two children has the subject.
	mixed := enqueue(t, r, rawArgs("mixed", `"`+planted+` child"`))
	waitPipeline(t, pool, mixed)
	fast := enqueue(t, r, rawArgs("fast", `"`+planted+` child"`))
	waitPipeline(t, pool, fast)
	deferred := submit(rawArgs("deferred", text))
	inState(t, r, deferred, job.Waiting)
	token := queryOne[string](t, pool, `select token from trapeze.deferrals where id = $1`, deferred)
	is.NoErr(r.Complete(t.Context(), deferred, token, planted, runner.Part(planted)))
	waitEnded(t, r, deferred)
	// Operators mention the subject in the reasons for their commands.
	submit(rawArgs("nothing", text), runner.Delay(time.Hour))
	_, err := r.Admin("ann").CancelMany(ctx, job.Filter{Subject: planted}, false)
	is.NoErr(err)
	// Move the job a day into the past.
	exec(t, pool, `update trapeze.done set finished_at = finished_at - interval '1 day' where id = $1`, failed)
	exec(t, pool, `update trapeze.job_events set at = at - interval '1 day' where job = $1`, failed)
	// These jobs must not be erased: one has another subject, and one has a subject that starts with the same text.
	other := enqueue(t, r, rawArgs("works", `"KEPT"`), runner.Subject(planted+"2"))
	before := waitEnded(t, r, other)
	quiet(t, pool)
	waits := submit(rawArgs("works", text), runner.Delay(time.Hour))
	untouched := queryOne[string](t, pool, `select string_agg(e::text, ' ' order by event_no) from trapeze.job_events e where job = $1`, other)
	exec(t, pool, `update trapeze.jobs set subject = 'alike' where id = $1`, other) // so that tablesWith finds only data that must be erased
	exec(t, pool, `delete from trapeze.subjects where job_id = $1`, other)

	had := tablesWith(t, pool, planted)
	for _, table := range []string{"audit", "subjects", "done_succeeded", "done_failed", "job_events", "job_progress", "jobs", "fan_outs", "parts", "pipelines", "submissions", "parked"} {
		if !strings.Contains(strings.Join(had, " "), table) {
			t.Errorf("the test stores no planted text in %s: %v", table, had)
		}
	}

	dry, err := r.Admin("ann").Erase(ctx, admin.Erasure{Subject: planted, DryRun: true})
	is.NoErr(err)
	is.Equal(tablesWith(t, pool, planted), had) // a dry run changes nothing

	did, err := r.Admin("ann").Erase(t.Context(), admin.Erasure{Subject: planted})
	is.NoErr(err)
	is.Equal(did.Jobs, dry.Jobs)
	is.Equal(did.AuditEntries, dry.AuditEntries)
	is.Equal(did.Sample, []int64{waits}) // the skipped job, which has not finished
	is.Equal(did.Open, 1)
	is.Equal(queryOne[int](t, pool, `select count(*)::int from trapeze.jobs where id = $1 and args::text like '%PLANTED%'`, waits), 1)
	_, err = r.Admin("ann").Cancel(t.Context(), waits)
	is.NoErr(err)
	did, err = r.Admin("ann").Erase(t.Context(), admin.Erasure{Subject: planted})
	is.NoErr(err)
	is.Equal(did.Jobs, 1)
	is.Equal(did.Open, 0)
	exec(t, pool, `update trapeze.jobs set args = '{}' where id = any($1)`, []int64{mixed, fast}) // the parents have other subjects, so their args are not erased
	is.Equal(tablesWith(t, pool, planted), []string(nil))
	is.Equal(queryOne[int](t, pool, `select count(*)::int from trapeze.submissions`), 0) // no hash of the subject remains either

	// Each batch is recorded in the audit log, without the subject.
	is.Equal(queryOne[int](t, pool, `select sum((after ->> 'jobs')::int)::int from trapeze.audit where action = 'subject.erase' and target like 'subject sha256:%' and actor = 'ann'`), dry.Jobs+1)
	events := eventsOf(t, r, failed)
	is.Equal(events, []string{"job.enqueued", "job.claimed", "job.failed", "job.followed", "job.erased"})
	is.Equal(reasonOf(waitEnded(t, r, failed)), job.ReasonError) // the outcome is kept

	// An erased job cannot run again.
	for _, id := range []int64{failed, planner, fast, queryOne[int64](t, pool, `select id from trapeze.jobs where parent_id = $1 and group_id is null`, mixed), queryOne[int64](t, pool, `select id from trapeze.jobs where pipeline_id = $1 and kind = 'fails'`, chain)} {
		_, err := r.Admin("ann").Retry(t.Context(), id, nil)
		if !errors.Is(err, job.ErrPruned) {
			t.Errorf("job %d runs again: %v", id, err)
		}
	}
	// Other jobs are unchanged.
	after := get(t, r, other)
	is.Equal(string(after.Args), string(before.Args))
	is.Equal(string(after.Result), string(before.Result))
	is.Equal(queryOne[string](t, pool, `select string_agg(e::text, ' ' order by event_no) from trapeze.job_events e where job = $1`, other), untouched)
	checkHistory(t, pool, r)
}

func TestErasureWithRunningDescendants(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	hold, open := latch(t)
	r := start(t, pool, runner.Options{}, map[string]handler{"nothing": succeed, "waits": waitOn(hold),
		"fails": func(context.Context, *raw) (*runner.Outcome, error) { return nil, job.Permanent(errors.New("no")) }})
	ctx := t.Context()
	chain := enqueue(t, r, runner.Chain(rawArgs("nothing", `"args"`), runner.With(rawArgs("waits"), runner.Subject("b"))), runner.Subject("a"))
	failed := enqueue(t, r, rawArgs("fails", `"args"`), runner.Subject("a"), runner.OnFailure(rawArgs("waits")))
	alone := enqueue(t, r, rawArgs("nothing", `"args"`), runner.Subject("a"))
	waitEnded(t, r, chain)
	waitEnded(t, r, failed)
	waitEnded(t, r, alone)
	_, err := r.Admin("ann").SetSchedule(ctx, "daily", job.ScheduleChange{Expression: new("@daily"), Kind: new("nothing"), Subject: new("a")})
	is.NoErr(err)

	did, err := r.Admin("ann").Erase(ctx, admin.Erasure{Subject: "a", Kind: "waits"})
	is.NoErr(err)
	is.Equal(did.Jobs, 0)
	did, err = r.Admin("ann").Erase(ctx, admin.Erasure{Subject: "a"})
	is.NoErr(err)
	is.Equal(did.Jobs, 1) // only the job without descendants
	is.Equal(did.Schedules, []string{"daily"})
	for _, id := range []int64{chain, failed} {
		is.Equal(string(get(t, r, id).Args), `"args"`) // kept because its descendants may read the args
	}
	open()
	quiet(t, pool)
	did, err = r.Admin("ann").Erase(ctx, admin.Erasure{Subject: "a"})
	is.NoErr(err)
	is.Equal(did.Jobs, 4) // both jobs, and the jobs that followed from them
	is.Equal(did.Open, 0)
	_, err = r.Admin("ann").Erase(ctx, admin.Erasure{})
	is.True(errors.Is(err, job.ErrInvalid))
}

func TestErasureOfJobRunningAgain(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, map[string]handler{"nothing": succeed,
		"fails": func(context.Context, *raw) (*runner.Outcome, error) { return nil, job.Permanent(errors.New("no")) }})
	first := enqueue(t, r, rawArgs("nothing"), runner.Subject("a"))
	again := enqueue(t, r, rawArgs("fails"), runner.Subject("a"), runner.OnFailure(runner.With(rawArgs("nothing", `"args"`), runner.Subject("b"))))
	waitEnded(t, r, first)
	waitEnded(t, r, again)
	quiet(t, pool)
	tx, err := pool.Begin(t.Context())
	is.NoErr(err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), `select from trapeze.jobs where id = $1 for update`, first)
	is.NoErr(err)
	erased := make(chan error, 1)
	go func() {
		for { // retried, because on a busy machine the lock is held longer than Erase waits for it
			_, err := r.Admin("ann").Erase(t.Context(), admin.Erasure{Subject: "a"})
			if pg := (*pgconn.PgError)(nil); !errors.As(err, &pg) || pg.Code != "55P03" { // lock_not_available
				erased <- err
				return
			}
		}
	}()
	pgtest.Wait(t, "the erasure is waiting for a lock", func() bool { return queryOne[int](t, pool, waitForLocks) > 0 })
	_, err = r.Admin("ann").Retry(t.Context(), again, nil)
	is.NoErr(err)
	followers := func() int {
		return queryOne[int](t, pool, `select count(*)::int from trapeze.jobs where subject = 'b'`)
	}
	pgtest.Wait(t, "it fails again", func() bool { return followers() == 2 })
	quiet(t, pool)
	is.NoErr(tx.Rollback(t.Context()))
	is.NoErr(<-erased)
	did, err := r.Admin("ann").Erase(t.Context(), admin.Erasure{Subject: "a"}) // finds the job if it was not erased
	is.NoErr(err)
	is.Equal(did.Open, 0)
	is.Equal(followers(), 0)
}

func TestErasureOfPrunedFailureJobs(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := erasable(t, pool)
	followed := runner.OnFailure(runner.With(rawArgs("works", `"`+planted+`"`), runner.Subject("b")))
	enqueue(t, r, rawArgs("fails", `"E1"`), runner.Subject("a"), followed)
	enqueue(t, r, runner.Chain(rawArgs("nothing", `"args"`), runner.With(rawArgs("fails", `"E2"`), runner.Subject("b"), followed)), runner.Subject("a"))
	kept := enqueue(t, r, rawArgs("fails", `"E3"`), runner.Subject("c"), followed)
	waitEnded(t, r, kept)
	pgtest.Wait(t, "on-failure jobs follow", func() bool {
		return queryOne[int](t, pool, `select count(*)::int from trapeze.jobs where step = 0 and parent_id is not null`) == 3
	})
	quiet(t, pool)
	exec(t, pool, `delete from trapeze.job_events where event = 'job.followed'`)
	did, err := r.Admin("ann").Erase(t.Context(), admin.Erasure{Subject: "a", Kind: "nothing"})
	is.NoErr(err)
	is.Equal(did.Jobs, 3) // the chain of two, and the job submitted when its second step failed
	did, err = r.Admin("ann").Erase(t.Context(), admin.Erasure{Subject: "a"})
	is.NoErr(err)
	is.Equal(did.Jobs, 2)
	is.Equal(queryOne[int](t, pool, `select count(*)::int from trapeze.jobs where args::text = '"PLANTED"'`), 1)
	is.Equal(queryOne[int64](t, pool, `select parent_id from trapeze.jobs where args::text = '"PLANTED"'`), kept)
}

func TestAuditErasureAndChange(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `insert into trapeze.audit (actor, action, target, reason, before) values ('ann', 'job.cancel', 'job 1', 'why', '{"a":1}')`)
	for _, sql := range []string{`update trapeze.audit set actor = 'bob'`, `update trapeze.audit set at = now()`, `update trapeze.audit set allowed = false`,
		`update trapeze.audit set reason = 'other'`, `update trapeze.audit set before = '{"a":2}'`, `update trapeze.audit set before = null`,
		`update trapeze.audit set before = '{"erased":true}', target = 'job 2'`, `delete from trapeze.audit`, `truncate trapeze.audit`} {
		_, err := pool.Exec(t.Context(), sql)
		is.True(err != nil && strings.Contains(err.Error(), "only added to"))
	}
	_, err := pool.Exec(t.Context(), `update trapeze.audit set before = '{"erased":true}', reason = 'erased'`)
	is.NoErr(err)
}

func TestErasureOfAuditSpellings(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, map[string]handler{})
	for _, query := range []string{"subject=%C3%84nn+Lee%3A1", "limit=9&subject=%c3%84%6en%20Lee:1&to=7", "subject=Änn+Lee:1", "subject=%C3%84nn+Lee%3A12"} {
		exec(t, pool, `insert into trapeze.audit (actor, action, target, after) values ('ann', 'job.read_args', 'jobs', json_build_object('asked', '/jobs?' || $1::text))`, query)
	}
	did, err := r.Admin("ann").Erase(t.Context(), admin.Erasure{Subject: "Änn Lee:1"})
	is.NoErr(err)
	is.Equal(did.AuditEntries, 3)
	is.Equal(queryOne[string](t, pool, `select after ->> 'asked' from trapeze.audit where after ->> 'asked' <> ''`), "/jobs?subject=%C3%84nn+Lee%3A12")
	_, err = r.Admin("ann").Erase(t.Context(), admin.Erasure{Subject: strings.Repeat("Ä :%", 100)}) // the longest possible subject
	is.NoErr(err)
}

func TestErasureBesideOtherAuditEntries(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := start(t, pool, runner.Options{}, map[string]handler{})
	for _, e := range [][3]string{
		{"job.cancel", "why", `{"filter":{"subject":"state"},"matched":1}`}, {"schedule.set", "why", `{"kind":"a","unique_key":"state"}`},
		{"job.read_args", "why", `{"asked":"/jobs?limit=5\u0026subject=state\u0026to=7","shown":["job 7"]}`}, {"job.retry", "for state: 7", `{"jobs":7}`},
		{"job.retry", "why", `{"state":"state","jobs":7}`}, {"job.cancel", "why", `{"filter":{"subject":"state2"}}`}, {"subject.erase", "the state asks", `{"jobs":7}`},
	} {
		exec(t, pool, `insert into trapeze.audit (actor, action, target, reason, after) values ('ann', $1, 'jobs', $2, $3)`, e[0], e[1], e[2])
	}
	for _, dry := range []bool{true, false} {
		did, err := r.Admin("ann").Erase(t.Context(), admin.Erasure{Subject: "state", DryRun: dry})
		is.NoErr(err)
		is.Equal(did.AuditEntries, 4)
	}
	is.Equal(column[string](t, pool, `select coalesce(after ->> 'erased', reason) from trapeze.audit where target = 'jobs' order by id`),
		[]string{"true", "true", "true", "erased", "why", "why", "the state asks"})
}
