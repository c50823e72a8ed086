package runner_test

import (
	"testing"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

// A pod that reconnects registers a new row. If that row is closed before the first heartbeat, because the pod was cut off again, the pod
// registers yet another row.
func TestLapseDuringRegistration(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	r := start(t, pool, short, map[string]handler{"k": succeed})
	inState(t, r, enqueue(t, r, rawArgs("k")), job.Succeeded)
	// Close the pod's second row as soon as it is inserted.
	exec(t, pool, `create function public.lapse() returns trigger language plpgsql as $$
		begin
			if (select count(*) from trapeze.pods) = 1 then new.closed_at := now(); new.closed := 'lapsed'; end if;
			return new;
		end $$`)
	exec(t, pool, `create trigger lapse before insert on trapeze.pods for each row execute function public.lapse()`)
	exec(t, pool, `update trapeze.pods set closed_at = now(), closed = 'lapsed'`)
	pgtest.Wait(t, "the pod has registered again", func() bool { return queryOne[int](t, pool, `select count(*) from trapeze.pods`) >= 2 })
	inState(t, r, enqueue(t, r, rawArgs("k")), job.Succeeded)
}
