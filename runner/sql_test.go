package runner_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/matryer/is"
	"go.opentelemetry.io/otel/trace"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestSQLEnqueueMatchesLibrary(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec(t, pool, `insert into trapeze.lanes (name, requires_approval) values ('l', false), ('careful', true)`)
	exec(t, pool, `insert into trapeze.lane_kinds values ('housed', 'l')`)
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed, "housed": succeed, "next": succeed, "after": succeed})
	for name, c := range map[string]struct {
		args    job.Args
		options []runner.EnqueueOption
	}{
		"plain":    {rawArgs("k", `{"kg": 12.50, "text": "<&>"}`), nil},
		"housed":   {rawArgs("housed"), nil},
		"full":     {rawArgs("k"), []runner.EnqueueOption{runner.Lane("l"), runner.Subject("s"), runner.Priority(-7), runner.MaxAttempts(3), runner.Pipeline("p"), runner.Delay(time.Hour)}},
		"approval": {rawArgs("k"), []runner.EnqueueOption{runner.NeedsApproval()}},
		"careful":  {rawArgs("k"), []runner.EnqueueOption{runner.Lane("careful")}},
		"failure":  {rawArgs("k"), []runner.EnqueueOption{runner.OnFailure(runner.Chain(rawArgs("after"), rawArgs("next")))}},
		"keys":     {rawArgs("k"), []runner.EnqueueOption{runner.Unique("u", runner.WhilePending), runner.IdempotencyKey("i"), runner.Key("t")}},
		"chain": {runner.Chain(rawArgs("k"), runner.With(rawArgs("next", `1`), runner.Subject("t"), runner.Lane("l"), runner.Priority(3), runner.OnFailure(rawArgs("after", `2`))), rawArgs("next")),
			[]runner.EnqueueOption{runner.OnFailureOrCancel(rawArgs("after", `3`))}},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			options := append(c.options, runner.Submitter("ann"))
			theirs, err := runner.EnqueueSQL(t.Context(), db, c.args, options...)
			is.NoErr(err)
			is.Equal(theirs.Duplicate, false)
			is.Equal(get(t, r, theirs.ID).State, theirs.State)
			row := func(id int64) string {
				return queryOne[string](t, pool, `select row(j.kind, j.lane, j.subject, j.args::text, (j.planned)::text, j.max_attempts, j.submitter, j.unique_key, j.pipeline_id = j.id, j.parent_id,
					j.step, j.impaired, l.state, l.event_no, l.priority, l.unique_while, l.lane, l.ready_at is null, p.why, p.run_after > now() + interval '59 minutes', p.priority, i.name,
					(select string_agg(row(e.event, e.event_no, e.from_state, e.to_state, e.actor)::text, ',') from trapeze.job_event e where e.job = j.id),
					(select count(*) from trapeze.unique_keys u where u.job_id = j.id), (select s.key || s.fingerprint::text from trapeze.submissions s where s.job_id = j.id))::text
					from trapeze.jobs j left join trapeze.live l using (id) left join trapeze.parked p using (id) left join trapeze.pipelines i using (id) where j.id = $1`, id)
			}
			got := row(theirs.ID)
			if name == "keys" { // free the keys for the second submission
				exec(t, pool, `delete from trapeze.unique_keys; delete from trapeze.submissions`)
			}
			ours, err := r.Enqueue(t.Context(), c.args, options...)
			is.NoErr(err)
			is.Equal(theirs.State, ours.State)
			is.Equal(got, row(ours.ID))
		})
	}
}

func TestSQLInvalidSubmissions(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	for name, c := range map[string]struct {
		args    string
		is      error
		message string
	}{
		"no kind":          {`kind => null`, job.ErrInvalid, "of kind null"},
		"an odd kind":      {`kind => 'a b'`, job.ErrInvalid, `kind "a b"`},
		"an unknown lane":  {`kind => 'k', lane => 'x'`, job.ErrUnknownLane, `lane "x"`},
		"a priority":       {`kind => 'k', priority => 101`, job.ErrInvalid, "-100 to 100"},
		"a subject":        {`kind => 'k', subject => repeat('x', 501)`, job.ErrInvalid, "at most 500"},
		"large arguments":  {`kind => 'k', args => to_json(repeat('x', 1048576))`, job.ErrTooLarge, "1048576"},
		"deep arguments":   {`kind => 'k', args => (repeat('[', 5001) || repeat(']', 5001))::json`, job.ErrInvalidArgs, "nested 5001 deep"},
		"a deep step":      {`kind => 'k', chain => ('[{"kind":"a","args":' || repeat('{"a":', 5001) || '1' || repeat('}', 5001) || '}]')::json`, job.ErrInvalidArgs, "nested 5001 deep"},
		"a NUL":            {`kind => 'k', args => '"\u0000"'`, job.ErrInvalidArgs, "args of k"},
		"an empty key":     {`kind => 'k', idempotency_key => ''`, job.ErrInvalid, "idempotency_key"},
		"a unique key":     {`kind => 'k', unique_key => ''`, job.ErrInvalid, "unique_key"},
		"unique for ever":  {`kind => 'k', unique_key => 'u', unique_while => 'ever'`, job.ErrInvalid, "pending or active"},
		"attempts":         {`kind => 'k', max_attempts => 0`, job.ErrInvalid, "max_attempts"},
		"a chain":          {`kind => 'k', chain => '{}'`, job.ErrInvalid, "array"},
		"a step":           {`kind => 'k', chain => '["k"]'`, job.ErrInvalid, "step 1 of the chain"},
		"a member":         {`kind => 'k', chain => '[{"kind":"a"},{"kind":"b","delay":1}]'`, job.ErrInvalid, "step 2 of the chain has a member delay"},
		"a step's lane":    {`kind => 'k', chain => '[{"kind":"a","lane":"x"}]'`, job.ErrUnknownLane, `"x"`},
		"a step's failure": {`kind => 'k', on_failure => '[{"kind":"a","when":"never"}]'`, job.ErrInvalid, "never"},
		"own, but when":    {`kind => 'k', chain => '[{"kind":"a","own":true}]'`, job.ErrInvalid, "does not say when"},
		"a step's number":  {`kind => 'k', chain => '[{"kind":"a","priority":"high"}]'`, job.ErrInvalid, "priority"},
		"for ever":         {`kind => 'k', run_at => 'infinity'`, job.ErrInvalid, "run_at"},
		"many steps":       {`kind => 'k', chain => (select json_agg('{"kind":"a"}'::json) from generate_series(1, 1001))`, job.ErrTooLarge, "1000 steps"},
		"replace":          {`kind => 'k', replace => true`, job.ErrInvalid, "need a unique_key"},
		"replace active":   {`kind => 'k', unique_key => 'u', replace => true`, job.ErrInvalid, "replace needs unique_while pending"},
		"debounce":         {`kind => 'k', unique_key => 'u', unique_while => 'pending', debounce => '0', debounce_max => '1s'`, job.ErrInvalid, "debounce of 00:00:00, want more than 0"},
		"debounce max":     {`kind => 'k', unique_key => 'u', unique_while => 'pending', debounce => '2s', debounce_max => '1s'`, job.ErrInvalid, "debounce_max of 00:00:01, want at least debounce"},
		"no debounce max":  {`kind => 'k', unique_key => 'u', unique_while => 'pending', debounce => '2s'`, job.ErrInvalid, "debounce_max of null"},
		"no debounce":      {`kind => 'k', unique_key => 'u', unique_while => 'pending', debounce_max => '2s'`, job.ErrInvalid, "debounce of null"},
		"throttle":         {`kind => 'k', unique_key => 'u', unique_while => 'pending', throttle => '-1s'`, job.ErrInvalid, "throttle of -00:00:01, want more than 0"},
		"throttle later":   {`kind => 'k', unique_key => 'u', unique_while => 'pending', throttle => '1s', run_at => now() + '1h'`, job.ErrInvalid, "with run_at"},
		"both":             {`kind => 'k', unique_key => 'u', unique_while => 'pending', throttle => '1s', debounce => '1s', debounce_max => '1s'`, job.ErrInvalid, "throttle with debounce"},
		"ordered":          {`kind => 'k', ordered => true`, job.ErrInvalid, "ordered without a subject"},
		"a late start":     {`kind => 'k', start_by => now() - interval '1 s'`, job.ErrInvalid, "start_by"},
		"a submitter":      {`kind => 'k', submitter => repeat('x', 201)`, job.ErrInvalid, "200"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			_, err := db.ExecContext(t.Context(), `select trapeze.enqueue(`+c.args+`)`)
			is.True(err != nil && strings.Contains(err.Error(), c.message))
			is.True(strings.Contains(err.Error(), strings.Replace(c.is.Error(), "invalid request", "invalid submission", 1))) // the function's errors use the word submission, because it accepts nothing else
			is.True(errors.Is(work.SQLError(err), c.is))
		})
	}
	is.New(t).Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs`), 0)
}

func TestSQLDeeplyNestedArguments(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	for _, args := range []string{
		strings.Repeat("[", 5000) + strings.Repeat("]", 5000),
		"[" + strings.Repeat(`{"a":[]},`, 6000) + "1]",
		`["` + strings.Repeat(`[\"{\\`, 6000) + `"]`, // brackets inside a string
	} {
		theirs := queryOne[int64](t, pool, `select id from trapeze.enqueue(kind => 'k', args => $1)`, args)
		is.Equal(queryOne[string](t, pool, `select args::text from trapeze.jobs where id = $1`, theirs), args)
		enqueue(t, r, rawArgs("k", args)) // the library accepts these arguments too
		_, err := json.Marshal(get(t, r, theirs))
		is.NoErr(err)
	}
}

// Programs call the function by name with these parameters. Never edit these lines: a release that needs different parameters must add a
// new function.
const (
	enqueueParameters = "kind text, args json DEFAULT '{}'::json, lane text DEFAULT NULL::text, subject text DEFAULT ''::text, priority integer DEFAULT 10, " +
		"run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, idempotency_key text DEFAULT NULL::text, unique_key text DEFAULT NULL::text, " +
		"unique_while text DEFAULT 'active'::text, max_attempts integer DEFAULT NULL::integer, chain json DEFAULT NULL::json, on_failure json DEFAULT NULL::json, " +
		"submitter text DEFAULT NULL::text, pipeline text DEFAULT NULL::text, needs_approval boolean DEFAULT false, traceparent text DEFAULT NULL::text, " +
		"key text DEFAULT NULL::text, ordered boolean DEFAULT false, start_by timestamp with time zone DEFAULT NULL::timestamp with time zone, " +
		"replace boolean DEFAULT false, debounce interval DEFAULT NULL::interval, debounce_max interval DEFAULT NULL::interval, throttle interval DEFAULT NULL::interval, " +
		"OUT id bigint, OUT pipeline_id bigint, OUT state text, OUT duplicate boolean, OUT replaced boolean"
	enqueueCall = `select id, pipeline_id, state, duplicate from trapeze.enqueue(kind => 'k', args => '{"a":1}', lane => 'default', subject => 's', priority => 3,
		run_at => now(), idempotency_key => 'i', unique_key => 'u', unique_while => 'pending', max_attempts => 2, chain => '[{"kind":"a","args":1,"lane":"default","subject":"t","key":"other","priority":1}]',
		on_failure => '[{"kind":"b","when":"failed_or_cancelled"}]', submitter => 'ann', pipeline => 'p', needs_approval => false,
		traceparent => '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', key => 'tenant')`
)

func TestSQLEnqueueFunctionSignature(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	is.Equal(queryOne[string](t, pool, `select pg_get_function_arguments(oid) from pg_proc where pronamespace = 'trapeze'::regnamespace and proname = 'enqueue'`), enqueueParameters)
	exec(t, pool, enqueueCall)
	is.Equal(queryOne[string](t, pool, `select submitter || kind || args from trapeze.jobs`), `annk{"a":1}`)
}

func TestSQLSubmissionTraceContext(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	s, err := runner.EnqueueSQL(trace.ContextWithSpanContext(t.Context(), span), db, rawArgs("k"))
	is.NoErr(err)
	is.Equal(queryOne[string](t, pool, `select traceparent from trapeze.jobs where id = $1`, s.ID), "00-01000000000000000000000000000000-0200000000000000-01")
}

func TestSQLSubmissionKeys(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	submit := func(args job.Args, o ...runner.EnqueueOption) runner.Submitted {
		s, err := runner.EnqueueSQL(t.Context(), db, args, o...)
		is.NoErr(err)
		return s
	}
	first := submit(rawArgs("k", `1`), runner.IdempotencyKey("i"))
	again := submit(rawArgs("k", `1`), runner.IdempotencyKey("i"))
	is.True(again.Duplicate)
	is.Equal(again.ID, first.ID)
	is.Equal(again.State, job.Pending)
	_, err := runner.EnqueueSQL(t.Context(), db, rawArgs("k", `1`), runner.IdempotencyKey("i"), runner.Key("other"))
	is.True(errors.Is(err, job.ErrKeyReused))
	_, err = runner.EnqueueSQL(t.Context(), db, rawArgs("k", `2`), runner.IdempotencyKey("i"))
	is.True(errors.Is(err, job.ErrKeyReused))
	holder := submit(rawArgs("k", `3`), runner.Unique("u", runner.WhileActive))
	taken := submit(rawArgs("k", `4`), runner.Unique("u", runner.WhileActive), runner.IdempotencyKey("j"))
	is.True(taken.Duplicate)
	is.Equal(taken.ID, holder.ID)
	is.Equal(submit(rawArgs("k", `4`), runner.IdempotencyKey("j")).ID, holder.ID) // the idempotency key belongs to that job

	// The library and SQL share a submitter's idempotency keys.
	r := start(t, pool, runner.Options{}, map[string]handler{"k": succeed})
	user := queryOne[string](t, pool, `select session_user::text`)
	s, err := r.Enqueue(t.Context(), rawArgs("k", `1`), runner.IdempotencyKey("i"), runner.Submitter(user))
	is.NoErr(err)
	is.Equal(s.ID, first.ID)
	quiet(t, pool)
	is.True(!submit(rawArgs("k", `5`), runner.Unique("u", runner.WhileActive)).Duplicate) // the job that held the key has finished
	quiet(t, pool)
}

// The function and the library do the same with the job that holds a key, whichever of them submitted it.
func TestSQLReplacesWaitingJob(t *testing.T) {
	t.Parallel()
	type step struct {
		args    string
		key     runner.UniqueOption
		options []runner.EnqueueOption
	}
	pending := runner.Unique("u", runner.WhilePending)
	for name, steps := range map[string][]step{
		"replace":       {{`1`, pending.Replace(), nil}, {`2`, pending.Replace(), nil}, {`3`, pending, nil}, {`4`, pending.Replace(), []runner.EnqueueOption{runner.IdempotencyKey("i")}}},
		"debounce":      {{`1`, pending.Debounce(time.Hour, 3*time.Hour), nil}, {`2`, pending.Debounce(2*time.Hour, 3*time.Hour), nil}, {`3`, pending.Debounce(5*time.Hour, 6*time.Hour), nil}},
		"throttle":      {{`1`, pending.Throttle(time.Hour), nil}, {`started`, pending, nil}, {`2`, pending.Throttle(time.Hour), nil}, {`3`, pending.Throttle(time.Hour), nil}},
		"approval":      {{`1`, pending.Replace(), []runner.EnqueueOption{runner.Subject("s")}}, {`2`, pending.Replace(), []runner.EnqueueOption{runner.Subject("s"), runner.NeedsApproval()}}, {`3`, pending.Replace(), []runner.EnqueueOption{runner.Subject("s")}}},
		"other key":     {{`1`, pending.Replace(), []runner.EnqueueOption{runner.Key("a")}}, {`2`, pending.Replace(), []runner.EnqueueOption{runner.Key("b")}}},
		"other subject": {{`1`, pending.Replace(), nil}, {`2`, pending.Replace(), []runner.EnqueueOption{runner.Subject("s")}}},
		"another's job": {{`1`, pending.Replace(), nil}, {`2`, pending.Replace(), []runner.EnqueueOption{runner.Submitter("bob")}}},
		"while active":  {{`1`, runner.Unique("u", runner.WhileActive), nil}, {`2`, pending.Replace(), nil}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := pgtest.Pool(t)
			db := stdlib.OpenDBFromPool(pool)
			defer func() { _ = db.Close() }()
			r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed})
			var logs []string
			for _, which := range []string{"SQL", "Go", "both"} {
				exec(t, pool, `delete from trapeze.jobs; delete from trapeze.live; delete from trapeze.parked; delete from trapeze.unique_keys; delete from trapeze.submissions`)
				log, ids := "", map[int64]int{}
				for no, s := range steps {
					if s.args == "started" {
						exec(t, pool, `update trapeze.live set started_at = now(), unique_while = null; delete from trapeze.unique_keys`)
						continue
					}
					options := append([]runner.EnqueueOption{runner.Submitter("ann"), s.key}, s.options...)
					var made runner.Submitted
					var err error
					if which == "SQL" || which == "both" && no%2 == 0 {
						made, err = runner.EnqueueSQL(t.Context(), db, rawArgs("k", s.args), options...)
					} else {
						made, err = r.Enqueue(t.Context(), rawArgs("k", s.args), options...)
					}
					if err != nil {
						log += fmt.Sprintf("invalid %t, held %t\n", errors.Is(err, job.ErrInvalid), errors.Is(err, job.ErrKeyHeld))
						continue
					}
					if ids[made.ID] == 0 {
						ids[made.ID] = len(ids) + 1
					}
					log += fmt.Sprintf("job %d %s, duplicate %t, replaced %t: ", ids[made.ID], made.State, made.Duplicate, made.Replaced)
					log += queryOne[string](t, pool, `select row(j.args::text, j.replaced, j.throttled_at is null, l.state, p.why, round(extract(epoch from p.run_after - now()) / 60), coalesce(l.epoch, p.epoch),
						(select u.replaced from trapeze.unique_keys u where u.job_id = j.id), (select count(*) from trapeze.submissions s where s.job_id = j.id),
						(select string_agg(row(e.event, e.event_no, e.from_state, e.to_state, e.actor, e.fields)::text, ',' order by e.event_no) from trapeze.job_event e where e.job = j.id))::text
						from trapeze.jobs j left join trapeze.live l using (id) left join trapeze.parked p using (id) where j.id = $1`, made.ID) + "\n"
				}
				logs = append(logs, log)
				is.Equal(log, logs[0])
			}
		})
	}
}

// The job that holds a key may end while a submission waits for the key. The submission then creates a job.
func TestSQLSubmissionAwaitingKey(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	first := queryOne[int64](t, pool, `select id from trapeze.enqueue(kind => 'k', unique_key => 'u')`)
	tx, err := pool.Begin(t.Context())
	is.NoErr(err)
	_, err = tx.Exec(t.Context(), `select from trapeze.unique_keys for update`)
	is.NoErr(err)
	made := make(chan *int64, 1)
	go func() {
		var id *int64
		err := pool.QueryRow(t.Context(), `select id from trapeze.enqueue(kind => 'k', unique_key => 'u')`).Scan(&id)
		if err != nil {
			t.Error(err)
		}
		made <- id
	}()
	pgtest.Wait(t, "the submission waits", func() bool {
		return queryOne[int](t, pool, `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%trapeze.enqueue%'`) == 1
	})
	_, err = tx.Exec(t.Context(), `delete from trapeze.unique_keys`)
	is.NoErr(err)
	is.NoErr(tx.Commit(t.Context()))
	second := <-made
	is.True(second != nil && *second != first)
	is.Equal(queryOne[int64](t, pool, `select job_id from trapeze.unique_keys`), *second)
}

// A role that may only execute the function can do nothing else, and can submit only under its own name.
func TestProducerRolePrivileges(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	role, _, pool := given(t, "A producer in SQL", "trapeze_producer")
	db := stdlib.OpenDB(*pool.Config().ConnConfig, stdlib.OptionAfterConnect(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `set session authorization `+role)
		return err
	}))
	defer func() { _ = db.Close() }()
	s, err := runner.EnqueueSQL(t.Context(), db, rawArgs("k"))
	is.NoErr(err)
	is.Equal(queryOne[string](t, pool, `select submitter from trapeze.jobs where id = $1`, s.ID), role)
	_, err = runner.EnqueueSQL(t.Context(), db, rawArgs("k"), runner.Submitter("ann"))
	is.True(errors.Is(err, job.ErrInvalid))
	is.True(strings.Contains(err.Error(), "may not name another"))

	member, _ := pgtest.Role(t, pool.Config().ConnString())
	exec(t, pool, `grant `+role+` to `+member)
	conn, err := db.Conn(t.Context())
	is.NoErr(err)
	defer func() { _ = conn.Close() }()
	for _, statement := range []string{`reset session authorization`, `set session authorization ` + member, `set role ` + role} {
		_, err := conn.ExecContext(t.Context(), statement)
		is.NoErr(err)
	}
	s, err = runner.EnqueueSQL(t.Context(), conn, rawArgs("k"))
	is.NoErr(err)
	is.Equal(queryOne[string](t, pool, `select submitter from trapeze.jobs where id = $1`, s.ID), member) // the session user, not the current role
	for _, forbidden := range []string{`select * from trapeze.jobs`, `insert into trapeze.live (id) values (1)`, `select trapeze.single_job_id()`,
		`select trapeze.check_job('', 'k', '{}', null, '', 1)`, `select trapeze.advance_job_ids(1)`, `select trapeze.settle_history()`} {
		_, err := db.ExecContext(t.Context(), forbidden)
		is.True(err != nil && strings.Contains(err.Error(), "permission denied"))
	}
}

// Transactions commit, roll back or lose their client at random. A job exists if and only if its order does, and each job runs once.
// Submitting single jobs does not use up blocks of job IDs.
func TestSQLEnqueueTransaction(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `create table orders (no int primary key)`)
	r := start(t, pool, runner.Options{PollInterval: time.Hour}, map[string]handler{"k": succeed}) // polls are too rare to start the jobs, so every wake-up has to arrive
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	before := queryOne[int64](t, pool, `select last_value from trapeze.job_ids`)
	made := 0
	for no := range sqlRounds {
		ctx, cancel := context.WithCancel(t.Context())
		tx, err := db.BeginTx(ctx, nil)
		is.NoErr(err)
		_, err = tx.ExecContext(ctx, `insert into orders values ($1)`, no)
		is.NoErr(err)
		_, err = runner.EnqueueSQL(ctx, tx, rawArgs("k", fmt.Sprint(no)))
		is.NoErr(err)
		switch rand.IntN(4) {
		case 0:
			_ = tx.Rollback()
		case 1:
			cancel() // the client disconnects
			_ = tx.Commit()
		default:
			is.NoErr(tx.Commit())
			made++
		}
		cancel()
	}
	is.True(made > 0)
	const odd = `select count(*)::int from orders o full join (select args::text::int as no from trapeze.jobs where kind = 'k') j using (no) where o.no is null or j.no is null`
	is.Equal(queryOne[int](t, pool, odd), 0)
	pgtest.Wait(t, "each job has run", func() bool {
		return queryOne[int](t, pool, `select count(*)::int from trapeze.done where state = 'succeeded'`) == queryOne[int](t, pool, `select count(*)::int from orders`)
	})
	is.True(queryOne[int64](t, pool, `select last_value from trapeze.job_ids`)-before <= 2000)
	is.Equal(queryOne[int](t, pool, `select count(*)::int from trapeze.jobs where id % 1000 <> 0`), 0)
	checkHistory(t, pool, r)
}

// When the sequence has fallen behind existing IDs, for example after a restore, concurrent submissions must still get distinct IDs.
func TestConcurrentIDsFromLaggingSequence(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	for range 50 {
		_, err := runner.EnqueueSQL(t.Context(), db, rawArgs("k"))
		is.NoErr(err)
	}
	for range 5 {
		exec(t, pool, `select setval('trapeze.single_job_ids', 1, false)`)
		errs := make(chan error, 8)
		for range cap(errs) {
			go func() {
				_, err := runner.EnqueueSQL(t.Context(), db, rawArgs("k"))
				errs <- err
			}()
		}
		for range cap(errs) {
			is.NoErr(<-errs)
		}
	}
	is.Equal(queryOne[int](t, pool, `select count(distinct id) from trapeze.jobs`), 50+5*8)
}

func TestJobIDsAfterRestore(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	for range 3 {
		_, err := runner.EnqueueSQL(t.Context(), db, rawArgs("k"))
		is.NoErr(err)
	}
	exec(t, pool, `select setval('trapeze.single_job_ids', 1, false)`)
	s, err := runner.EnqueueSQL(t.Context(), db, rawArgs("k"))
	is.NoErr(err)
	is.Equal(s.ID, int64(5000))
	exec(t, pool, `select trapeze.settle_history()`)
	exec(t, pool, `update trapeze.cluster set timeline = timeline + 1`)
	exec(t, pool, `select trapeze.settle_history()`) // detects the new timeline
	s, err = runner.EnqueueSQL(t.Context(), db, rawArgs("k"))
	is.NoErr(err)
	is.True(s.ID > 1<<32)
	is.Equal(s.ID%1000, int64(0))
	_, err = db.ExecContext(t.Context(), `select trapeze.enqueue(kind => 'k', run_at => '-infinity', needs_approval => true)`)
	is.NoErr(err)
	is.True(queryOne[bool](t, pool, `select run_after > now() - interval '1 minute' from trapeze.parked`))
	r := newRunner(t, pool, runner.Options{}, map[string]handler{"k": succeed}) // SQL submissions take IDs outside the runner's blocks, so they do not advance the blocks
	for range 3 {
		is.True(enqueue(t, r, rawArgs("k")) < s.ID+1_000_000)
	}
	_, err = runner.EnqueueSQL(t.Context(), db, rawArgs("k"), runner.InSchema("elsewhere"))
	is.True(err != nil)
	_, err = runner.EnqueueSQL(t.Context(), db, rawArgs("k"), runner.InSchema("else; where"))
	is.True(errors.Is(err, job.ErrInvalid))
	_, err = runner.EnqueueSQL(t.Context(), db, rawArgs("k"), runner.InSchema("order"))
	is.True(errors.Is(err, job.ErrInvalid)) // a reserved word
}

// A submission that fails, or whose transaction stays open, leaves no lock that delays other sessions.
func TestSQLSubmissionAdvisoryLocks(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	const locks = `select count(*)::int from pg_locks where locktype = 'advisory' and objid = 420028
		and database = (select oid from pg_database where datname = current_database())`
	host, err := pool.Acquire(t.Context())
	is.NoErr(err)
	defer host.Release()
	_, err = host.Exec(t.Context(), `begin read only`)
	is.NoErr(err)
	_, err = host.Exec(t.Context(), `select trapeze.enqueue('k')`)
	is.True(err != nil) // the transaction is read-only
	_, err = host.Exec(t.Context(), `rollback`)
	is.NoErr(err)
	is.Equal(queryOne[int](t, pool, locks), 0)

	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	var last int64
	for range 3 {
		last = sqlJob(t, db)
	}
	exec(t, pool, `select setval('trapeze.single_job_ids', 1, false)`) // as after a restore
	_, err = host.Exec(t.Context(), `begin`)
	is.NoErr(err)
	var moved int64
	is.NoErr(host.QueryRow(t.Context(), `select id from trapeze.enqueue('k')`).Scan(&moved)) // moves the sequence
	is.True(moved > last)
	is.Equal(queryOne[int](t, pool, locks), 0)
	exec(t, pool, `insert into trapeze.jobs select (json_populate_record(j, json_build_object('id', $1::bigint))).* from trapeze.jobs j where id = $2`,
		moved+1000, last) // the next id is in use
	is.True(sqlJob(t, db) > moved+1000) // moves the sequence while the other transaction is open
	_, err = host.Exec(t.Context(), `commit`)
	is.NoErr(err)
}

func sqlJob(t *testing.T, db *sql.DB) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	s, err := runner.EnqueueSQL(ctx, db, rawArgs("k"))
	if err != nil {
		t.Fatal(err)
	}
	return s.ID
}

func TestSQLJobIDsAfterFailover(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	exec(t, pool, `select setval('trapeze.single_job_ids', 10000000)`) // of ten million jobs, all pruned
	before := queryOne[int64](t, pool, `select id from trapeze.enqueue('k')`)
	exec(t, pool, `delete from trapeze.jobs`)
	exec(t, pool, `update trapeze.cluster set history = gen_random_uuid()`) // as after a failover
	is.True(queryOne[int64](t, pool, `select id from trapeze.enqueue('k')`) > before+1<<32-1000)
}
