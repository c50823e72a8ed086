package model

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// The model assumes that PostgreSQL locks rows and inserts keys as these tests show.
const assumedTables = `
create table waiting (id int primary key, why text);
create table guards (subject text, job int, state text);
create unique index on guards (subject) where state = 'held';
insert into waiting values (1, 'scheduled'), (2, 'subject'), (3, 'subject');
insert into guards values ('s', 9, 'held')`

func TestInsertWaitsForWriters(t *testing.T) {
	is := is.New(t)
	pool := assumed(t)
	for _, c := range []struct {
		held, subject string
		waits         bool
	}{
		{`select from guards where subject = 's' for update`, "s", false},
		{`update guards set job = 8 where subject = 's'`, "s", true},
		{`update guards set state = 'free' where subject = 's'`, "s", true},
		{`delete from guards where subject = 's'`, "s", true},
		{`insert into guards values ('new', 1, 'held')`, "new", true},
	} {
		other := begin(t, pool)
		_, err := other.Exec(t.Context(), c.held)
		is.NoErr(err)
		tx := begin(t, pool)
		_, err = tx.Exec(t.Context(), `set local lock_timeout = '100ms'`)
		is.NoErr(err)
		_, err = tx.Exec(t.Context(), `insert into guards values ($1, 1, 'held') on conflict (subject) where state = 'held' do nothing`, c.subject)
		is.Equal(err != nil, c.waits) // an insert waits for a transaction that has written the key, and not for one that has locked it
		is.NoErr(tx.Rollback(t.Context()))
		is.NoErr(other.Rollback(t.Context()))
	}
}

func TestChangedRowStaysLocked(t *testing.T) {
	is := is.New(t)
	pool := assumed(t)
	tx, found := lockAfter(t, pool, `scheduled`, `update waiting set why = 'subject' where id = 1`)
	is.Equal(found, 0)
	var free int
	is.NoErr(pool.QueryRow(t.Context(), `select count(*) from (select from waiting where id = 1 for update skip locked) w`).Scan(&free))
	is.Equal(free, 0) // the statement that no longer finds the row has locked it
	is.NoErr(tx.Rollback(t.Context()))

	tx, found = lockAfter(t, pool, `subject`, `with gone as (delete from waiting where id = 1 returning id) insert into waiting select id, 'subject' from gone`)
	is.Equal(found, 2) // a replaced row is gone, and the next row is found
	is.NoErr(pool.QueryRow(t.Context(), `select count(*) from (select from waiting where id = 1 for update skip locked) w`).Scan(&free))
	is.Equal(free, 1)
	is.NoErr(tx.Rollback(t.Context()))
}

// lockAfter locks the first row with the given reason, after its statement has taken its snapshot and a change was committed. It returns the
// open transaction and the row's id, or 0.
func lockAfter(t *testing.T, pool *pgxpool.Pool, why, change string) (tx pgx.Tx, found int) {
	is := is.New(t)
	gate := begin(t, pool)
	_, err := gate.Exec(t.Context(), `select pg_advisory_xact_lock(1)`)
	is.NoErr(err)
	tx = begin(t, pool)
	locked := make(chan error, 1)
	go func() {
		locked <- tx.QueryRow(t.Context(), `
with gate as materialized (select pg_advisory_xact_lock(1) is not null as passed)
select coalesce((select id from gate, lateral (
	select id from waiting where why = $1 and gate.passed order by id limit 1 for update skip locked) w), 0)`, why).Scan(&found)
	}()
	pgtest.Wait(t, "the statement has its snapshot", func() bool {
		var waits bool
		err := pool.QueryRow(t.Context(), `select exists (select from pg_locks where locktype = 'advisory' and not granted
			and database = (select oid from pg_database where datname = current_database()))`).Scan(&waits)
		return err == nil && waits
	})
	_, err = pool.Exec(t.Context(), change)
	is.NoErr(err)
	is.NoErr(gate.Rollback(t.Context()))
	is.NoErr(<-locked)
	return tx, found
}

func assumed(t *testing.T) *pgxpool.Pool {
	pool := pgtest.Connect(t, pgtest.EmptyURL(t))
	_, err := pool.Exec(t.Context(), assumedTables)
	is.New(t).NoErr(err)
	return pool
}

func begin(t *testing.T, pool *pgxpool.Pool) pgx.Tx {
	tx, err := pool.Begin(t.Context())
	is.New(t).NoErr(err)
	return tx
}
