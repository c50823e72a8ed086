package store_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/trapeze-run/trapeze/internal/store"
)

func TestPreparedStatementAfterTableChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`create table changing (a int)`)
	w.exec(`insert into changing values (1)`)
	read := func() map[string]any {
		list, err := store.Rows(w.ctx(), w.Store, pgx.RowToMap, `select * from changing`)
		w.is.NoErr(err)
		return list[0]
	}
	w.is.Equal(read(), map[string]any{"a": int32(1)})
	w.exec(`alter table changing add b text default 'new'`)
	w.is.Equal(read(), map[string]any{"a": int32(1), "b": "new"})
	w.exec(`alter table changing alter a type text`)
	w.is.Equal(read(), map[string]any{"a": "1", "b": "new"})
}

func TestARefusedStatementStaysPrepared(t *testing.T) {
	t.Parallel()
	w := newWorldOn(t, newWorld(t).pool, store.Options{Connections: 1})
	const divide = `select 1 / $1::int`
	prepared := func() (at string) {
		list, err := store.Rows(w.ctx(), w.Store, pgx.RowTo[string], `select prepare_time::text from pg_prepared_statements where statement = $1`, divide)
		w.is.NoErr(err)
		w.is.Equal(len(list), 1)
		return list[0]
	}
	_, err := store.Rows(w.ctx(), w.Store, pgx.RowTo[int], divide, 1)
	w.is.NoErr(err)
	before := prepared()
	_, err = store.Rows(w.ctx(), w.Store, pgx.RowTo[int], divide, 0)
	pg, ok := errors.AsType[*pgconn.PgError](err)
	w.is.True(ok && pg.Code == "22012")
	_, err = store.Rows(w.ctx(), w.Store, pgx.RowTo[int], divide, 1)
	w.is.NoErr(err)
	w.is.Equal(prepared(), before)
}
