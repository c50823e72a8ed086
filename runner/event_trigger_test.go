package runner_test

import (
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func TestForbiddenPartitionWarning(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	pgtest.AllDays(t, pool)
	// The trigger writes to a table without a schema, which the search path of ensure_partitions does not include.
	exec(t, pool, `do $$ begin execute format('drop table trapeze.done_failed_%s', to_char((now() at time zone 'UTC')::date + 7, 'YYYYMMDD')); end $$;
		create table ddl_log (tag text);
		create function log_ddl() returns event_trigger language plpgsql as $$ begin insert into ddl_log values (tg_tag); end $$;
		create event trigger log_ddl on ddl_command_end execute function log_ddl()`)
	logger, lines := debugging()
	r := start(t, pool, runner.Options{Logger: logger}, map[string]handler{"k": succeed})
	is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("k"))).State, job.Succeeded)
	is.True(strings.Contains(lines.String(), "could not create partitions, retrying within a minute"))
}

func TestIdleSessionTimeout(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	pool := pgtest.Connect(t, pgtest.WithParameter(url, "idle_session_timeout=0"))
	exec(t, pool, `do $$ begin execute format('alter database %I set idle_session_timeout = ''50ms''', current_database()); end $$`)
	start(t, pgtest.Connect(t, url), runner.Options{}, map[string]handler{"k": succeed})
	for _, name := range []string{"trapeze", "trapeze-listen"} {
		pgtest.Wait(t, name+" was idle for longer", func() bool {
			return queryOne[bool](t, pool, `select exists (select from pg_stat_activity where datname = current_database() and application_name = $1
				and state = 'idle' and state_change < now() - interval '200 ms')`, name)
		})
	}
}
