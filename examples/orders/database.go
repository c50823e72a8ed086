package main

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/trapeze-run/trapeze/internal/pgembed"
)

// createTables creates the service's own tables. A real service would use its migrations.
func createTables(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, `
		create table if not exists orders (
			id text primary key, item text not null, region text not null, cents bigint not null, card text not null,
			state text not null default 'placed' check (state in ('placed', 'shipped', 'refunded')),
			pipeline bigint not null default 0, placed_at timestamptz not null default now());
		create table if not exists stock (item text primary key, items_left int not null check (items_left >= 0));
		create table if not exists reservations ("order" text primary key references orders, item text not null references stock);
		create table if not exists reports (day date primary key, lines jsonb not null);
		insert into stock values ('lamp', 100), ('piano', 3) on conflict do nothing`)
	return err
}

// openDatabase returns url unless it is empty. Otherwise, it starts a PostgreSQL server that stops with the program, and returns that
// server's URL. A real service does not need this function, because it sets DATABASE_URL.
func openDatabase(ctx context.Context, url string) (string, func(), error) {
	if url != "" {
		return url, func() {}, nil
	}
	server, err := pgembed.Start(ctx, pgembed.Options{})
	if err != nil {
		return "", nil, err
	}
	return server.URL(), func() { _ = server.Stop() }, nil
}
