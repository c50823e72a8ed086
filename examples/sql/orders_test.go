package orders

import (
	"context"
	cryptorand "crypto/rand"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"time"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	_ "github.com/lib/pq"
	"github.com/matryer/is"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// begun is an open transaction that has stored an order and submitted its job.
type begun struct{ commit, rollback func() error }

// begin stores an order in a new transaction that is bound to ctx.
type begin func(ctx context.Context, no int) (begun, error)

func ofSQL(db *sql.DB, store func(context.Context, *sql.Tx, int) error) begin {
	return func(ctx context.Context, no int) (begun, error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return begun{}, err
		}
		return begun{tx.Commit, tx.Rollback}, store(ctx, tx, no)
	}
}

func libraries(t *testing.T, address string) map[string]begin {
	t.Helper()
	open := func(driver string) *sql.DB {
		db, err := sql.Open(driver, address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	pgx, pq, forSqlx, forGORM, forBun := open("pgx"), open("postgres"), open("pgx"), open("pgx"), open("pgx")
	forEnt, forSqlc := open("pgx"), open("pgx")
	g, err := gorm.Open(postgres.New(postgres.Config{Conn: forGORM}), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	x := sqlx.NewDb(forSqlx, "pgx")
	b := bun.NewDB(forBun, pgdialect.New())
	e := entsql.OpenDB(dialect.Postgres, forEnt)
	return map[string]begin{
		"database/sql with pgx":    ofSQL(pgx, WithSQL),
		"database/sql with lib/pq": ofSQL(pq, WithSQL),
		"sqlc":                     ofSQL(forSqlc, WithSqlc),
		"sqlx": func(ctx context.Context, no int) (begun, error) {
			tx, err := x.BeginTxx(ctx, nil)
			if err != nil {
				return begun{}, err
			}
			return begun{tx.Commit, tx.Rollback}, WithSqlx(ctx, tx, no)
		},
		"GORM": func(ctx context.Context, no int) (begun, error) {
			tx := g.WithContext(ctx).Begin()
			if tx.Error != nil {
				return begun{}, tx.Error
			}
			return begun{func() error { return tx.Commit().Error }, func() error { return tx.Rollback().Error }}, WithGORM(tx, no)
		},
		"Bun": func(ctx context.Context, no int) (begun, error) {
			tx, err := b.BeginTx(ctx, nil)
			if err != nil {
				return begun{}, err
			}
			return begun{tx.Commit, tx.Rollback}, WithBun(ctx, tx, no)
		},
		"ent": func(ctx context.Context, no int) (begun, error) {
			tx, err := e.Tx(ctx)
			if err != nil {
				return begun{}, err
			}
			return begun{tx.Commit, tx.Rollback}, WithEnt(ctx, tx.(*entsql.Tx), no)
		},
	}
}

// asRole creates a role whose password lib/pq accepts, and returns the address that connects as this role. The test's own role cannot be
// used, because its password is hashed with a single iteration.
func asRole(t *testing.T, pool *pgxpool.Pool, address string) string {
	t.Helper()
	role := fmt.Sprint("orders_", rand.Uint64())
	password := cryptorand.Text()
	if _, err := pool.Exec(t.Context(), `create role `+role+` login in role current_user password '`+password+`' valid until '`+
		time.Now().Add(time.Hour).UTC().Format(time.RFC3339)+`'`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), `drop role `+role); err != nil {
			t.Error(err)
		}
	})
	if !strings.Contains(address, "sslmode=") {
		address = pgtest.WithParameter(address, "sslmode=disable") // otherwise, lib/pq requires TLS
	}
	if !strings.Contains(address, "://") {
		return address + " user=" + role + " password=" + password
	}
	at, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	at.User = url.UserPassword(role, password)
	return at.String()
}

// The test commits, rolls back and kills a thousand transactions at random with each library. Afterwards, there must be a job for every
// stored order and no other job, and each job must have run exactly once.
func TestOrderAndJobCommitTogether(t *testing.T) {
	for name := range libraries(t, pgtest.URL(t)) {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			address := pgtest.URL(t)
			pool := pgtest.Connect(t, address)
			_, err := pool.Exec(t.Context(), `create table orders (no int primary key)`)
			is.NoErr(err)
			store := libraries(t, asRole(t, pool, address))[name]
			committed, rounds := 0, 1000
			if testing.Short() {
				rounds = 50
			}
			for no := 1; no <= rounds; no++ { // GORM treats 0 as unset
				ctx, cancel := context.WithCancel(t.Context())
				tx, err := store(ctx, no)
				is.NoErr(err)
				switch rand.IntN(5) {
				case 0:
					is.NoErr(tx.rollback())
				case 1: // the server closes the connection
					_, err := pool.Exec(t.Context(), `select pg_terminate_backend(pid) from pg_stat_activity
						where datname = current_database() and state = 'idle in transaction' and pid <> pg_backend_pid()`)
					is.NoErr(err)
					is.True(tx.commit() != nil)
				case 2: // the client cancels
					cancel()
					is.True(tx.commit() != nil)
				default:
					is.NoErr(tx.commit())
					committed++
				}
				cancel()
			}
			count := func(query string) (n int) {
				is.NoErr(pool.QueryRow(t.Context(), query).Scan(&n))
				return n
			}
			is.Equal(count(`select count(*) from orders`), committed)
			is.Equal(count(`select count(*) from orders o full join (select (args ->> 'Order')::int as no from trapeze.jobs) j using (no) where o.no is null or j.no is null`), 0)
			is.Equal(count(`select count(*) from trapeze.job_ids where is_called`), 0) // no block of IDs was used
			r, err := runner.New(pool, runner.Options{})
			is.NoErr(err)
			defer r.Close()
			runner.Handle(r, func(context.Context, *runner.Job[Ship]) (*runner.Outcome, error) { return nil, nil })
			runs, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- r.Run(runs) }()
			pgtest.Wait(t, "all have run", func() bool {
				return count(`select count(*) from trapeze.done where state = 'succeeded' and fence = 1`) == committed
			})
			stop()
			is.NoErr(<-ended)
		})
	}
}
