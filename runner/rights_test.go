package runner_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/admin"
	"github.com/trapeze-run/trapeze/runner/migrate"
)

// rights returns the statements under a heading of docs/grants.md, with the example's role replaced by role.
func rights(t *testing.T, heading, example, role string) string {
	t.Helper()
	page, err := os.ReadFile("../docs/grants.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "\n## "+heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	_, sql, fenced := strings.Cut(section, "```sql\n")
	sql, _, closed := strings.Cut(sql, "\n```")
	if !found || !fenced || !closed {
		t.Fatalf("docs/grants.md has no SQL under %q", heading)
	}
	return strings.ReplaceAll(sql, example, role)
}

// given creates a role with the permissions listed under a heading. It returns the role, a pool for the role and a pool for the tables'
// owner.
func given(t *testing.T, heading, example string) (role string, pool, owner *pgxpool.Pool) {
	t.Helper()
	url := pgtest.URL(t)
	owner = pgtest.Connect(t, url)
	role, as := pgtest.Role(t, url)
	if _, err := owner.Exec(t.Context(), rights(t, heading, example, role)); err != nil {
		t.Fatal(err)
	}
	return role, pgtest.Connect(t, as), owner
}

// erases creates a role with the permissions that the guide lists for erasing and for running jobs.
func erases(t *testing.T, owner *pgxpool.Pool, app string) (role string) {
	t.Helper()
	role, _ = pgtest.Role(t, owner.Config().ConnString())
	if _, err := owner.Exec(t.Context(), strings.ReplaceAll(rights(t, "A role that erases", "trapeze_eraser", role), "trapeze_app", app)); err != nil {
		t.Fatal(err)
	}
	return role
}

// A role that only submits cannot admit jobs. A pod does, and nothing is refused again.
func TestTakenSubjectAsSubmitter(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	_, pool, owner := given(t, "A role that submits only", "trapeze_submit")
	wait, open := latch(t)
	pod := start(t, owner, runner.Options{Slots: 2}, map[string]handler{"k": func(context.Context, *raw) (*runner.Outcome, error) {
		<-wait
		return nil, nil
	}})
	var log podtest.Log
	r := newRunner(t, pool, runner.Options{Logger: log.Logger()}, map[string]handler{"k": succeed})
	ids := []int64{enqueueStarted(t, pod, rawArgs("k"), runner.Subject("s"))}
	for range 3 {
		ids = append(ids, enqueue(t, r, rawArgs("k"), runner.Subject("s")))
	}
	open()
	for _, id := range ids {
		is.Equal(waitEnded(t, pod, id).State, job.Succeeded)
	}
	is.Equal(log.String(), "") // not even in errors that are only logged
}

func TestGuideEraseRights(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	app, pool, owner := given(t, "A role that runs jobs", "trapeze_app")
	eraser := erases(t, owner, app)
	r := start(t, owner, runner.Options{}, map[string]handler{"nothing": succeed})
	waitEnded(t, r, enqueue(t, r, rawArgs("nothing", `"args"`), runner.Subject("s")))
	_, err := newRunner(t, pool, runner.Options{}, nil).Admin("ann").Erase(t.Context(), admin.Erasure{Subject: "s"})
	is.True(err != nil && strings.Contains(err.Error(), "permission denied for table job_events"))
	as := pgtest.Connect(t, strings.ReplaceAll(pool.Config().ConnString(), app, eraser))
	did, err := newRunner(t, as, runner.Options{}, nil).Admin("ann").Erase(t.Context(), admin.Erasure{Subject: "s"})
	is.NoErr(err)
	is.Equal(did.Jobs, 1)
}

func TestGuideMigrationRights(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.EmptyURL(t)
	role, as := pgtest.Role(t, url)
	_, err := pgtest.Connect(t, url).Exec(t.Context(), rights(t, "The owner", "trapeze_owner", role))
	is.NoErr(err)
	is.NoErr(migrate.Up(t.Context(), pgtest.Connect(t, as), runner.Options{}))
}

// A role that owns nothing performs everything that pods and operators do. No statement may fail for lack of permission, even if its error
// is only logged.
func TestGuideRunRights(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	role, pool, owner := given(t, "A role that runs jobs", "trapeze_app")
	pgtest.Exec(t, owner, `create table mine (job bigint)`)
	pgtest.Exec(t, owner, `grant insert on mine to `+role)
	ctx := t.Context()
	mine := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `insert into mine values (1)`)
		return err
	}
	log, waiting := &podtest.Log{}, make(chan string, 1)
	o := runner.Options{Logger: log.Logger(), PollInterval: 100 * time.Millisecond, Lanes: []runner.LaneSetup{{Name: "mail", Slots: new(2), Kinds: []string{"fails"}}}}
	is.NoErr(migrate.Up(ctx, pool, o)) // creates only the lane; everything else exists
	r := newRunner(t, pool, o, map[string]handler{
		"plain": succeed,
		"writes": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			j.Progress(1, 2)
			err := j.Emit(ctx, "app.said", "", "hello", nil)
			if err == nil {
				err = j.Tx(ctx, func(tx pgx.Tx) error { return mine(ctx, tx) }, 1)
			}
			if err == nil {
				err = j.Checkpoint(ctx, 2)
			}
			return runner.Then(rawArgs("plain")).InTx(mine), err
		},
		"many": func(context.Context, *raw) (*runner.Outcome, error) {
			return runner.FanOut(rawArgs("plain"), rawArgs("plain")).Join(rawArgs("plain")), nil
		},
		"fails": func(context.Context, *raw) (*runner.Outcome, error) { return nil, fmt.Errorf("no") },
		"later": func(ctx context.Context, j *raw) (*runner.Outcome, error) {
			token, err := j.Token(ctx)
			waiting <- token
			return runner.Deferred(1), err
		},
		"snoozes": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			if j.Snoozes() == 0 {
				return runner.Snooze(time.Millisecond, "not yet"), nil
			}
			return nil, nil
		},
	})
	r.DeclareSchedule("often", "@every 1s", rawArgs("plain"))
	podtest.Run(t, r)
	admin := r.Admin("ann")

	is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("writes"), runner.Subject("s"))).State, job.Succeeded)
	is.Equal(queryOne[int](t, owner, `select count(*)::int from mine`), 2)
	many := enqueue(t, r, rawArgs("many"), runner.Unique("u", runner.WhileActive), runner.IdempotencyKey("i"))
	is.Equal(enqueue(t, r, rawArgs("many"), runner.Unique("u", runner.WhileActive), runner.IdempotencyKey("i")), many)
	is.Equal(waitEnded(t, r, many).State, job.Succeeded)
	is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("snoozes"))).State, job.Succeeded)
	failed := enqueue(t, r, rawArgs("fails"))
	is.Equal(waitEnded(t, r, failed).State, job.Failed)
	_, err := admin.Retry(ctx, failed, nil)
	is.NoErr(err)
	later := enqueue(t, r, rawArgs("later"))
	is.NoErr(r.Complete(ctx, later, <-waiting, nil))
	is.Equal(waitEnded(t, r, later).State, job.Succeeded)
	_, err = r.EnqueueMany(ctx, []job.Args{rawArgs("plain"), rawArgs("plain")})
	is.NoErr(err)
	is.NoErr(pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { _, err := r.EnqueueTx(ctx, tx, rawArgs("plain")); return err }))

	approved, cancelled := enqueue(t, r, rawArgs("plain"), runner.NeedsApproval()), enqueue(t, r, rawArgs("plain"), runner.Delay(time.Hour))
	is.NoErr(admin.Approve(ctx, approved))
	is.NoErr(admin.SetPriority(ctx, cancelled, 20, false))
	_, err = admin.Cancel(ctx, cancelled)
	is.NoErr(err)
	_, err = admin.Delete(ctx, cancelled)
	is.NoErr(err)
	_, err = admin.SetLane(ctx, "post", job.LaneChange{Kinds: &[]string{"snoozes"}})
	is.NoErr(err)
	_, err = admin.DrainLane(ctx, "post", 0)
	is.NoErr(err)
	_, err = admin.DeleteLane(ctx, "post", "default", false)
	is.NoErr(err)
	_, err = admin.Pause(ctx)
	is.NoErr(err)
	_, err = admin.Resume(ctx)
	is.NoErr(err)
	_, err = admin.Freeze(ctx, 0)
	is.NoErr(err)
	_, err = admin.Unfreeze(ctx)
	is.NoErr(err)
	_, err = admin.DrainPod(ctx, r.PodID(), 0)
	is.NoErr(err)
	_, err = admin.UndrainPod(ctx, r.PodID())
	is.NoErr(err)
	_, err = admin.SetRetention(ctx, "plain", job.Succeeded, new(time.Minute))
	is.NoErr(err)
	_, err = admin.SetRetention(ctx, "plain", job.Succeeded, nil)
	is.NoErr(err)
	_, err = admin.SetSchedule(ctx, "mine", job.ScheduleChange{Expression: new("@every 1h"), Kind: new("plain")})
	is.NoErr(err)
	_, err = admin.TriggerSchedule(ctx, "mine", nil)
	is.NoErr(err)
	is.NoErr(admin.DeleteSchedule(ctx, "mine"))
	_, err = admin.Status(ctx)
	is.NoErr(err)
	podtest.MetricValue(t, r, "trapeze_pods")
	pgtest.Wait(t, "the schedule fires", func() bool {
		return queryOne[int](t, owner, `select count(*)::int from trapeze.schedule_occurrences where schedule = 'often'`) > 0
	})
	for _, day := range []string{"done_succeeded", "job_events"} { // creates a partition that retention drops
		pgtest.Exec(t, owner, `create table trapeze.`+day+`_20200101 partition of trapeze.`+day+` for values from ('2020-01-01') to ('2020-01-02')`)
	}
	is.NoErr(r.Maintain(ctx))
	is.Equal(queryOne[int](t, owner, `select count(*)::int from pg_class where relname like '%\_20200101'`), 0)
	pgtest.Wait(t, "no heartbeat fails", func() bool { ready, _ := r.Ready(); return ready })
	is.True(!strings.Contains(log.String(), "permission denied")) // not even in errors that are only logged
}

// Functions that run with their owner's permissions must set search_path, and only the roles named in the guide may execute them.
func TestSecurityDefinerFunctionRights(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	where := ` from pg_proc p where pronamespace = 'trapeze'::regnamespace and prosecdef`
	is.True(queryOne[int](t, pool, `select count(*)`+where) >= 8)
	is.Equal(strings.Join(pgtest.Column[string](t, pool, `select proname`+where+` and (has_function_privilege('public', oid, 'execute')
		or not coalesce(proconfig[1] ~ '^search_path=pg_catalog, (trapeze, )?pg_temp$', false))`), " "), "")
}

// right is a permission that a statement in the code needs.
type right struct{ verb, object, file string }

// needs returns the permissions that the statements in the code need to change tables, use sequences and call functions.
func needs(t *testing.T) (list []right) {
	t.Helper()
	is := is.New(t)
	uses := regexp.MustCompile(`(insert) into trapeze\.(\w+)|(update) trapeze\.(\w+)|(delete) from trapeze\.(\w+)|(nextval)\('trapeze\.(\w+)'\)|trapeze\.(\w+)(\()`)
	for _, pattern := range []string{"../internal/store/*.go", "../internal/store/*/*.go", "../internal/pod/*.go", "../remote/internal/host/*.go"} {
		files, err := filepath.Glob(pattern)
		is.NoErr(err)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") || strings.Contains(file, "plantest") {
				continue
			}
			text, err := os.ReadFile(file)
			is.NoErr(err)
			for _, table := range updated(string(text)) {
				list = append(list, right{"update", table, file})
			}
			for _, found := range uses.FindAllStringSubmatch(string(text), -1) {
				what := strings.Fields(strings.Join(found[1:], " "))
				if what[1] == "(" {
					what = []string{"execute", what[0]}
				}
				list = append(list, right{what[0], what[1], file})
			}
		}
	}
	return list
}

// updated returns the tables that need the update permission because an upsert updates their rows or a select locks them.
func updated(text string) (tables []string) {
	last := func(before, pattern string) {
		if all := regexp.MustCompile(pattern).FindAllStringSubmatch(before, -1); len(all) > 0 {
			tables = append(tables, all[len(all)-1][1])
		}
	}
	for _, at := range regexp.MustCompile(`\bdo update\b`).FindAllStringIndex(text, -1) {
		last(text[:at[0]], `insert into trapeze\.(\w+)`)
	}
	for _, at := range regexp.MustCompile(`\bfor update\b(?: of (\w+))?`).FindAllStringSubmatchIndex(text, -1) {
		if at[2] < 0 {
			last(text[:at[0]], `from trapeze\.(\w+)`)
		} else {
			last(text[:at[0]], `trapeze\.(\w+) `+text[at[2]:at[3]]+`\b`)
		}
	}
	return tables
}

// missing returns the permissions in list that role lacks. Permissions for erasure are checked for eraser instead.
func missing(t *testing.T, owner *pgxpool.Pool, list []right, role, eraser string) (lacks []string) {
	t.Helper()
	known := map[right]bool{}
	for _, n := range list {
		sql, of := `select has_table_privilege($1, 'trapeze.' || $2, '`+n.verb+`')`, role
		switch {
		case n.verb == "execute":
			sql = `select coalesce(bool_and(has_function_privilege($1, oid, 'execute')), true) from pg_proc where pronamespace = 'trapeze'::regnamespace and proname = $2`
		case n.verb == "nextval":
			sql = `select has_sequence_privilege($1, 'trapeze.' || $2, 'usage')`
		case filepath.Base(n.file) == "erase.go" && n.verb == "update":
			sql, of = `select has_any_column_privilege($1, 'trapeze.' || $2, 'update')`, eraser
		}
		key := right{n.verb, n.object, of}
		has, ok := known[key]
		if !ok {
			has = queryOne[bool](t, owner, sql, of, n.object)
			known[key] = has
		}
		if !has {
			lacks = append(lacks, fmt.Sprintf("%s: the role may not %s %s: add it to docs/grants.md", n.file, n.verb, n.object))
		}
	}
	return lacks
}

// The permissions must cover every table that Trapeze's statements change and every function that they call, even in statements that the
// test above does not run. No permission is superfluous: removing any of them makes this test fail.
func TestGuideRightsPerStatement(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	role, pool, owner := given(t, "A role that runs jobs", "trapeze_app")
	eraser := erases(t, owner, role)
	list := needs(t)
	for _, lacks := range missing(t, owner, list, role, eraser) {
		t.Error(lacks)
	}
	granted := column[string](t, owner, `
		select privilege_type || ' on trapeze.' || table_name || ' from ' || grantee from information_schema.role_table_grants
		where grantee = $1 and privilege_type <> 'SELECT'
		union all select 'execute on function ' || p.oid::regprocedure || ' from ' || $1 from pg_proc p, aclexplode(p.proacl) a
		where p.pronamespace = 'trapeze'::regnamespace and a.grantee = (select oid from pg_roles where rolname = $1)
		union all select 'usage on sequence trapeze.' || c.relname || ' from ' || $1 from pg_class c, aclexplode(c.relacl) a
		where c.relkind = 'S' and c.relnamespace = 'trapeze'::regnamespace and a.grantee = (select oid from pg_roles where rolname = $1)
		union all select 'update (' || string_agg(column_name, ', ') || ') on trapeze.' || table_name || ' from ' || $2
		from information_schema.column_privileges where grantee = $2 and privilege_type = 'UPDATE' group by table_name`, role, eraser)
	is.True(len(granted) > 70)
	for _, grant := range granted {
		pgtest.Exec(t, owner, `revoke `+grant)
		if len(missing(t, owner, list, role, eraser)) == 0 {
			t.Errorf("no statement needs %s", grant)
		}
		pgtest.Exec(t, owner, `grant `+strings.Replace(grant, " from ", " to ", 1))
	}

	for _, forbidden := range []string{`create table trapeze.mine ()`, `create table mine ()`, `drop table trapeze.jobs`, `truncate trapeze.jobs`,
		`alter table trapeze.jobs add column mine int`, `delete from trapeze.migrations`, `update trapeze.audit set actor = 'bob'`,
		`delete from trapeze.job_events`} {
		_, err := pool.Exec(t.Context(), forbidden)
		if err == nil && forbidden == `create table mine ()` {
			continue // PostgreSQL 14 allows every role to create tables in public
		}
		is.True(err != nil) // the role lacks the permission
	}
}
