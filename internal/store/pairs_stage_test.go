package store_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/store"
)

// heldBeforeCommitSQL makes every transaction on a marked connection wait for advisory lock 7 when it commits. By then, it has written
// everything and holds all its locks. If advisory lock 8 is taken, the transaction rolls back.
const heldBeforeCommitSQL = `
create function trapeze.hold() returns trigger language plpgsql as $$
begin
	if current_setting('trapeze_test.held', true) = 'on' then
		perform pg_advisory_xact_lock_shared(7);
		if not pg_try_advisory_xact_lock_shared(8) then
			raise exception 'rolled back by the test';
		end if;
	end if;
	return null;
end $$;
create constraint trigger hold after insert or update or delete on trapeze.live   deferrable initially deferred for each row execute function trapeze.hold();
create constraint trigger hold after insert or update or delete on trapeze.parked deferrable initially deferred for each row execute function trapeze.hold();
create constraint trigger hold after insert or update or delete on trapeze.jobs   deferrable initially deferred for each row execute function trapeze.hold();
create constraint trigger hold after insert or update or delete on trapeze.pods   deferrable initially deferred for each row execute function trapeze.hold();
create constraint trigger hold after insert or update or delete on trapeze.lanes  deferrable initially deferred for each row execute function trapeze.hold();`

// stage is a database in which one store's transactions can be held just before they commit.
type stage struct {
	*world
	st   *store.Store
	held *store.Store // the store whose transactions can be held
}

// stages holds the stages that no test is using.
type stages struct {
	mu   sync.Mutex
	free []*stage
}

// take returns a free stage, or a new one that exists until t ends.
func (s *stages) take(t *testing.T) *stage {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) == 0 {
		return newStage(t)
	}
	last := len(s.free) - 1
	one := s.free[last]
	s.free = s.free[:last]
	return one
}

func (s *stages) put(one *stage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, one)
}

func newStage(t *testing.T) *stage {
	t.Helper()
	w := newWorld(t)
	w.exec(heldBeforeCommitSQL)
	config := w.pool.Config()
	config.ConnConfig.RuntimeParams["trapeze_test.held"] = "on"
	host, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	held, err := store.New(context.Background(), host, store.Options{Connections: 2})
	host.Close()
	if err != nil {
		t.Fatal(err)
	}
	// Even on a slow machine, no statement may time out while the first operation is being held.
	for _, s := range []*store.Store{w.Store, held} {
		s.Wait(5 * time.Minute)
	}
	t.Cleanup(func() {
		held.Close()
		if n := w.deadlocks(); n > 0 {
			t.Errorf("PostgreSQL had to resolve %d deadlocks", n)
		}
	})
	return &stage{world: w, st: w.Store, held: held}
}

// begin prepares the row for a test that starts from the given state.
func (s *stage) begin(t *testing.T, from string) *bench {
	t.Helper()
	b := newBench(t, s.st, s.pool)
	if err := makeOldDay(context.Background(), s.st); err != nil {
		t.Fatal(err)
	}
	n := b.job()
	n.Subject = "s"
	list := []operation{b.join(), b.join(), b.join(), b.join(), enqueues(bootOf(0), []store.NewJob{n}),
		claims(theLease.Pod, []store.Want{{Lane: "default", N: 1}}, []string{"k"}, true)}
	for _, v := range append(list, begin[from]...) {
		if got, want := v.ask(context.Background(), s.st), v.apply(b.m); got != want {
			t.Fatalf("%s returned %s, want %s", v.name, got, want)
		}
	}
	b.same("the beginning")
	return b
}

// hold keeps transactions of the held store from ending until release is called, which makes them commit or roll back.
func (s *stage) hold(t *testing.T) (release func(commits bool)) {
	t.Helper()
	conn, err := s.pool.Acquire(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	run := func(sql string) {
		if _, err := conn.Exec(context.Background(), sql); err != nil {
			t.Error(err)
		}
	}
	run(`select pg_advisory_lock(7)`)
	released := false
	release = func(commits bool) {
		if released {
			return
		}
		released = true
		if !commits {
			run(`select pg_advisory_lock(8)`)
		}
		run(`select pg_advisory_unlock(7)`)
	}
	t.Cleanup(func() {
		release(false)
		run(`select pg_advisory_unlock_all()`)
		conn.Release()
	})
	return release
}

// asked is an operation that has been started. answer is set before done is closed.
type asked struct {
	done   chan struct{}
	answer string
}

func (s *stage) ask(v operation, st *store.Store) *asked {
	a := &asked{done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.answer = v.ask(context.Background(), st)
	}()
	return a
}

// waiting returns the number of the store's statements that are waiting for a lock.
func (s *stage) waiting(t *testing.T) (n int) {
	t.Helper()
	err := s.pool.QueryRow(context.Background(), `select count(*) from pg_stat_activity
		where datname = current_database() and application_name = 'trapeze' and wait_event_type = 'Lock'`).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// barred reports whether a statement is waiting for an exclusive lock on a table, which blocks all readers of that table.
func (s *stage) barred(t *testing.T) (is bool) {
	t.Helper()
	err := s.pool.QueryRow(context.Background(), `select exists (select from pg_locks where not granted
		and mode = 'AccessExclusiveLock' and database = (select oid from pg_database where datname = current_database()))`).Scan(&is)
	if err != nil {
		t.Fatal(err)
	}
	return is
}

// table reads the database's contents.
func (s *stage) table(t *testing.T) []string {
	t.Helper()
	lines, err := table(context.Background(), s.pool)
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// check checks the history at the end of a test.
func (s *stage) check(t *testing.T) {
	t.Helper()
	w := *s.world
	w.t = t
	w.checkHistory()
}
