//go:build long

package runner_test

import (
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// A transient error in a queued statement fails no job, and an error at COMMIT fails only the job that caused it. No write is lost.
func TestGroupCommitErrors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		statement string // queued by one of the jobs
		fails     bool   // whether that job fails
	}{
		"a deadlock":              {`select fails_once('40P01')`, false},
		"a serialization failure": {`select fails_once('40001')`, false},
		"a lock timeout":          {`select fails_once('55P03')`, false},
		"at commit, once":         {`insert into deferred values ('40001')`, false},
		"at commit":               {`insert into mine values (-1), (-1)`, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := pgtest.Pool(t)
			exec(t, pool, `create table mine (job bigint unique deferrable initially deferred); create sequence calls; create table deferred (code text);
				create function fails_once(code text) returns void language plpgsql as $$ begin
					if nextval('calls') = 1 then raise 'for once' using errcode = code; end if;
				end $$;
				create function fails_at_commit() returns trigger language plpgsql as $$ begin perform fails_once(new.code); return null; end $$;
				create constraint trigger fails after insert on deferred deferrable initially deferred for each row execute function fails_at_commit()`)
			const jobs = 20
			r := start(t, pool, runner.Options{Slots: jobs}, map[string]handler{"a": endTogether(jobs, func(j *raw) *runner.Outcome {
				o := runner.Done(nil).Write(`insert into mine values ($1)`, j.ID())
				if string(j.Args.JSON) == `"odd"` {
					o.Write(c.statement)
				}
				return o
			})})
			odd := enqueue(t, r, rawArgs("a", `"odd"`))
			var others []int64
			for range jobs - 1 {
				others = append(others, enqueue(t, r, rawArgs("a")))
			}
			for _, id := range others {
				is.Equal(waitEnded(t, r, id).State, job.Succeeded)
			}
			j := waitEnded(t, r, odd)
			is.Equal(j.Attempt, 1)
			is.Equal(queryOne[int](t, pool, `select count(*) from mine where job = any($1)`, others), len(others))
			is.Equal(queryOne[int](t, pool, `select count(*) from mine where job = $1`, odd) == 1, !c.fails)
			is.Equal(queryOne[int](t, pool, `select count(*) from mine where job = -1`), 0)
			is.Equal(j.State == job.Failed, c.fails)
			if c.fails {
				is.True(strings.Contains(message(j), "SQLSTATE 23505"))
				is.Equal(*j.ErrorClass, job.ClassDatabase)
			}
			checkHistory(t, pool, r)
		})
	}
}
