package pgtest

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"
)

func count(t *testing.T, pool *pgxpool.Pool) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), "select count(*) from kept").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestStandbyPromotedWithoutLogTail(t *testing.T) {
	is := is.New(t)
	primary := Primary(t)
	standby := primary.AddStandby(t)
	is.True(!primary.InRecovery(t))
	is.True(standby.InRecovery(t))
	primary.Exec(t, "create table kept as select 1 as n")
	standby.CaughtUp(t)
	standby.LoseTail(t)
	primary.Exec(t, "insert into kept values (2)")
	primary.Kill(t)
	standby.Promote(t)
	pool := Connect(t, URLs(primary, standby)+"&target_session_attrs=read-write")
	is.Equal(count(t, pool), 1) // two rows were committed, but only one survives
	standby.Exec(t, "insert into kept values (3)")
	is.Equal(count(t, pool), 2)
}

func TestSynchronousStandbyHasCommits(t *testing.T) {
	is := is.New(t)
	primary := Primary(t)
	standby := primary.AddStandby(t)
	primary.Synchronous(t)
	primary.Exec(t, "create table kept as select 1 as n")
	primary.Kill(t)
	standby.Promote(t)
	is.Equal(count(t, Connect(t, standby.URL())), 1)
}

func TestFormerPrimaryRejoins(t *testing.T) {
	is := is.New(t)
	primary := Primary(t)
	standby := primary.AddStandby(t)
	primary.Halt(t)
	standby.Promote(t)
	primary.Follow(t, standby)
	is.True(primary.InRecovery(t))
	standby.Exec(t, "create table kept as select 1 as n")
	primary.CaughtUp(t)
	is.Equal(count(t, Connect(t, primary.URL())), 1)
	standby.Freeze(t)
	standby.Unfreeze(t)
	is.True(!standby.InRecovery(t))
}
