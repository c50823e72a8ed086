package main

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"
)

// fleet is a set of processes that share a database, with helpers for tests.
type fleet struct {
	database
	is   *is.I
	pool *pgxpool.Pool
	pods []*pod
}

func (f *fleet) count(sql string, args ...any) (n int) {
	f.t.Helper()
	f.is.NoErr(f.pool.QueryRow(f.t.Context(), sql, args...).Scan(&n))
	return n
}
