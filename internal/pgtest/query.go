package pgtest

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Tester is a test, a benchmark, or one run of a property test.
type Tester interface {
	Helper()
	Context() context.Context
	Fatalf(format string, args ...any)
}

// Database is a pool, a connection or a transaction.
type Database interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Exec runs a statement. Like the queries below, it also works while the test cleans up.
func Exec(t Tester, db Database, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(context.WithoutCancel(t.Context()), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// QueryOne runs a query and returns its single value.
func QueryOne[T any](t Tester, db Database, sql string, args ...any) (v T) {
	t.Helper()
	if err := db.QueryRow(context.WithoutCancel(t.Context()), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// Column runs a query with one result column and returns its values.
func Column[T any](t Tester, db Database, sql string, args ...any) []T {
	t.Helper()
	found, err := db.Query(context.WithoutCancel(t.Context()), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	list, err := pgx.CollectRows(found, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return list
}
