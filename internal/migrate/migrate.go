// Package migrate brings a database's schema to the version of this binary, with pressly/goose.
//
// Any number of pods may call [Up] at once on an empty database, with one connection each and also through a transaction
// pooler: everything goose does happens in one transaction that begins by taking a transaction-level advisory lock, so
// the lock cannot leak, cannot be lost, and a cancelled migration leaves nothing half done.
package migrate

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"

	"github.com/trapeze-run/trapeze/internal/dburl"
	"github.com/trapeze-run/trapeze/migrations"
)

// lockKey is the advisory lock under which schema changes happen.
const lockKey = 420020

var validSchema = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,47}$`)

// ErrSchemaTooOld is returned by [Check] when the database lacks migrations that this binary needs.
var ErrSchemaTooOld = errors.New("the database's schema is older than this program: run `trapeze migrate up`")

// ErrNoTables is returned by [Check] when nobody has made the tables.
var ErrNoTables = errors.New("call runner.Migrate, or run `trapeze migrate up`")

// ErrSchemaTooNew is returned by [Check] when the database has migrations of another minor version.
var ErrSchemaTooNew = errors.New("the database's schema is newer than this program: use the newer release")

// Migration is one schema change and whether the database has it.
type Migration struct {
	Version   int64
	Name      string
	AppliedAt time.Time // zero: pending
}

// Up applies every pending migration to the schema, which it creates when it is missing. It waits for another process
// that is migrating, as long as ctx lasts. Safe for concurrent use.
func Up(ctx context.Context, url, schema string) error {
	return withLocks(ctx, url, schema, func(p *goose.Provider) error {
		_, err := p.Up(ctx)
		return err
	})
}

// Down undoes migrations until to is the latest one applied; 0 undoes all. It drops data.
func Down(ctx context.Context, url, schema string, to int64) error {
	return withLocks(ctx, url, schema, func(p *goose.Provider) error {
		_, err := p.DownTo(ctx, to)
		return err
	})
}

// Status lists the migrations this binary knows, oldest first. It changes nothing, also where there is no schema yet.
func Status(ctx context.Context, url, schema string) ([]Migration, error) {
	list, err := unmigrated(ctx, url, schema)
	if err != nil || list != nil {
		return list, err
	}
	err = within(ctx, url, schema, func(p *goose.Provider) error {
		status, err := p.Status(ctx)
		for _, s := range status {
			list = append(list, Migration{Version: s.Source.Version, Name: s.Source.Path, AppliedAt: s.AppliedAt})
		}
		return err
	})
	return list, err
}

// unmigrated lists the migrations as pending when the schema has no table of versions, and nil when it has one.
func unmigrated(ctx context.Context, url, schema string) ([]Migration, error) {
	conn, err := dburl.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("migration status: %w", err)
	}
	defer conn.Close(ctx)
	var exists bool
	err = conn.QueryRow(ctx, `select to_regclass($1) is not null`, pgx.QueryExecModeExec, schema+".migrations").Scan(&exists)
	if err != nil || exists {
		return nil, err
	}
	names, err := fs.Glob(migrations.Files, "*.sql")
	list := make([]Migration, len(names))
	for i, name := range names {
		list[i].Name = name
		if list[i].Version, err = goose.NumericComponent(name); err != nil {
			return nil, err
		}
	}
	return list, err
}

// Latest is the version of the newest migration in this binary.
func Latest() int64 {
	names, err := fs.Glob(migrations.Files, "*.sql")
	if err != nil {
		panic(err)
	}
	var latest int64
	for _, name := range names {
		if v, err := goose.NumericComponent(name); err == nil {
			latest = max(latest, v)
		}
	}
	return latest
}

// perMinor is how many numbers the migrations of a minor version have: those of the first are 1 to 999, of the next 1000 to 1999. Within a
// minor version migrations only add, so that programs from before them go on working while pods are replaced one by one.
const perMinor = 1000

// Check compares the schema with this binary, reading only: nil, [ErrNoTables], [ErrSchemaTooOld] or [ErrSchemaTooNew]. A newer schema of the
// same minor version will do.
func Check(ctx context.Context, db interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}, schema string) error {
	if !validSchema.MatchString(schema) {
		return fmt.Errorf("schema name %q: want %s", schema, validSchema)
	}
	var at int64
	exists := false
	if err := db.QueryRow(ctx, `select to_regclass($1) is not null`, schema+".migrations").Scan(&exists); err != nil {
		return fmt.Errorf("check schema %s: %w", schema, err)
	}
	if exists {
		err := db.QueryRow(ctx, `select coalesce(max(version_id), 0) from `+pgx.Identifier{schema, "migrations"}.Sanitize()).Scan(&at)
		if err != nil {
			return fmt.Errorf("check schema %s: %w", schema, err)
		}
	}
	switch latest := Latest(); {
	case at == 0:
		return fmt.Errorf("schema %q has no tables: %w", schema, ErrNoTables)
	case at < latest:
		return fmt.Errorf("schema %s is at version %d of %d: %w", schema, at, latest, ErrSchemaTooOld)
	case at/perMinor > latest/perMinor:
		return fmt.Errorf("schema %s is at version %d, this program knows %d: %w", schema, at, latest, ErrSchemaTooNew)
	}
	return nil
}

// versionsSQL makes the table of versions as goose does, so that [Check] and a later [Up] find what was printed.
const versionsSQL = `-- Which migrations this schema has: pods read it when they start.
create table if not exists trapeze.migrations (
    id integer primary key generated by default as identity,
    version_id bigint not null,
    is_applied boolean not null,
    tstamp timestamp not null default now()
);
insert into trapeze.migrations (version_id, is_applied) values (0, true);
`

// Print writes the migrations up to the given version (0: all) as plain SQL, for people who use a migration tool of
// their own. It keeps the table of versions up to date.
func Print(w io.Writer, schema string, to int64) error {
	if !validSchema.MatchString(schema) {
		return fmt.Errorf("schema name %q: want %s", schema, validSchema)
	}
	if to == 0 {
		to = math.MaxInt64
	}
	names, err := fs.Glob(migrations.Files, "*.sql")
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "create schema if not exists %s;\n\n%s", schema, strings.ReplaceAll(versionsSQL, "trapeze.", schema+"."))
	for _, name := range names {
		v, err := goose.NumericComponent(name)
		if err != nil || v > to {
			continue
		}
		text, err := fs.ReadFile(renamed{schema}, name)
		if err != nil {
			return err
		}
		up, _, _ := bytes.Cut(text, []byte("-- +goose Down"))
		up = regexp.MustCompile(`(?m)^-- \+goose .*\n`).ReplaceAll(up, nil)
		fmt.Fprintf(w, "\n-- %s\n%s\ninsert into %s.migrations (version_id, is_applied) values (%d, true);\n",
			name, bytes.TrimSpace(up), schema, v)
	}
	return nil
}

// A migration waits lockTimeout for the lock of a table. Longer, and whoever came after it, which is every claim and every
// submission, would wait behind it for a transaction that somebody forgot to end; and where two wait for each other
// PostgreSQL would end the other one (deadlock_timeout, one second). It tries again until patience is over.
const (
	lockTimeout = 500 * time.Millisecond
	patience    = 2 * time.Minute
)

// withLocks runs goose again while it cannot have the locks that it needs.
func withLocks(ctx context.Context, url, schema string, do func(*goose.Provider) error) error {
	began := time.Now()
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := within(ctx, url, schema, do)
		pg, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || pg.Code != "55P03" && pg.Code != "40P01" {
			return err
		}
		if time.Since(began) > patience {
			return fmt.Errorf("a transaction has held a lock for %s that the migration needs; look for it in pg_stat_activity: %w",
				patience, err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// within runs goose over one connection, in one transaction.
func within(ctx context.Context, url, schema string, do func(*goose.Provider) error) (err error) {
	if !validSchema.MatchString(schema) {
		return fmt.Errorf("schema name %q: want %s", schema, validSchema)
	}
	config, err := dburl.Config(url)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	// No statement outlives its round trip, so a transaction pooler may sit in between.
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	dburl.RequireWrites(config, true)
	db := stdlib.OpenDB(*config)
	db.SetMaxOpenConns(1)
	defer func() { err = errors.Join(err, db.Close()) }()

	versions, err := database.NewStore(database.DialectPostgres, schema+".migrations")
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if err := prepare(ctx, db, schema, versions); err != nil {
		return fmt.Errorf("migrate schema %s: %w", schema, err)
	}
	p, err := goose.NewProvider(database.DialectCustom, db, renamed{schema},
		goose.WithStore(versions),
		goose.WithSessionLocker(oneTransaction{ctx.Err}),
		goose.WithIsolateDDL(true), // our lock is the transaction: goose opens none of its own
		goose.WithDisableGlobalRegistry(true),
		goose.WithSlog(slog.New(slog.DiscardHandler)))
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if err := do(p); err != nil {
		return fmt.Errorf("migrate schema %s: %w", schema, err)
	}
	return nil
}

// prepare makes the schema and the table of versions, under the lock: goose looks at them before it takes its lock.
func prepare(ctx context.Context, db *sql.DB, schema string, versions database.Store) (err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	lock := oneTransaction{ctx.Err}
	if err := lock.SessionLock(ctx, conn); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.SessionUnlock(context.WithoutCancel(ctx), conn)) }()
	if _, err := conn.ExecContext(ctx, "create schema if not exists "+schema); err != nil {
		return err
	}
	exists, err := versions.(database.StoreExtender).TableExists(ctx, conn)
	if err != nil || exists {
		return err
	}
	if err := versions.CreateVersionTable(ctx, conn); err != nil {
		return err
	}
	return versions.Insert(ctx, conn, database.InsertRequest{Version: 0})
}

// oneTransaction is goose's lock: a transaction around everything it does on the connection, which begins by waiting
// for any other migration. After a statement's error the COMMIT rolls back. A context that ended between two statements
// is no error of PostgreSQL's: then the transaction is rolled back here.
type oneTransaction struct{ cancelled func() error }

func (t oneTransaction) SessionLock(ctx context.Context, conn *sql.Conn) error {
	for _, statement := range []string{
		"begin",
		fmt.Sprintf("select pg_advisory_xact_lock(%d)", lockKey),
		"set local client_min_messages = warning",
		fmt.Sprintf("set local lock_timeout = %d", lockTimeout.Milliseconds()),
	} {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

func (t oneTransaction) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	end, cause := "commit", t.cancelled()
	if cause != nil {
		end = "rollback"
	}
	_, err := conn.ExecContext(ctx, end)
	return errors.Join(cause, err)
}

// renamed is the embedded files with another schema's name in the place of trapeze.
type renamed struct{ schema string }

var schemaWord = regexp.MustCompile(`\btrapeze\b`)

func (r renamed) Open(name string) (fs.File, error) { return r.open(name) }

func (r renamed) open(name string) (fs.File, error) {
	f, err := migrations.Files.Open(name)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil || info.IsDir() {
		return f, err
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	text = schemaWord.ReplaceAll(text, []byte(r.schema))
	return &renamedFile{Reader: bytes.NewReader(text), info: info}, nil
}

type renamedFile struct {
	*bytes.Reader
	info fs.FileInfo
}

func (f *renamedFile) Stat() (fs.FileInfo, error) { return f.info, nil }
func (f *renamedFile) Close() error               { return nil }
