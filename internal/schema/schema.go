// Package schema defines the schema version that this program needs, and checks whether a database has it. It changes nothing and needs no
// migration library. A program that runs jobs links this package; a program that migrates databases also links package migrate.
package schema

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/migrations"
)

var validName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,47}$`)

// ErrTooOld is returned by [Check] if the database lacks migrations that this binary needs.
var ErrTooOld = errors.New("the database's schema is older than this program: run `trapeze migrate up`")

// ErrNoTables is returned by [Check] if the tables do not exist.
var ErrNoTables = errors.New("call migrate.Up, or run `trapeze migrate up`")

// ErrNoData is returned if the tables exist, but no migration is recorded.
var ErrNoData = errors.New("it was restored without its data, or only in part: drop the schema, then restore it with its data, or run `trapeze migrate up` for an empty one")

// ErrTooNew is returned by [Check] if the database has migrations from a later minor version.
var ErrTooNew = errors.New("the database's schema is newer than this program: use the newer release")

// reserved lists the words that SQL does not accept as a schema name in every place without quotes (PostgreSQL 14 to 18).
var reserved = strings.Fields("all analyse analyze and any array as asc asymmetric authorization between bigint binary bit boolean both case cast char character check " +
	"coalesce collate collation column concurrently constraint create cross current_catalog current_date current_role current_schema " +
	"current_time current_timestamp current_user dec decimal default deferrable desc distinct do else end except exists extract false fetch " +
	"float for foreign freeze from full grant greatest group grouping having ilike in initially inner inout int integer intersect interval into " +
	"is isnull join json json_array json_arrayagg json_exists json_object json_objectagg json_query json_scalar json_serialize json_table " +
	"json_value lateral leading least left like limit localtime localtimestamp merge_action national natural nchar none normalize not notnull " +
	"null nullif numeric offset on only or order out outer overlaps overlay placing position precision primary real references returning right " +
	"row select session_user setof similar smallint some substring symmetric system_user table tablesample then time timestamp to trailing treat " +
	"trim true union unique user using values varchar variadic verbose when where window with xmlattributes xmlconcat xmlelement xmlexists " +
	"xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable")

// ValidName returns an error if name is not a schema name that can be used without quotes, or belongs to PostgreSQL.
func ValidName(name string) error {
	switch {
	case !validName.MatchString(name):
		return fmt.Errorf("schema name %q: want %s", name, validName)
	case strings.HasPrefix(name, "pg_") || name == "information_schema":
		return fmt.Errorf("schema name %q belongs to PostgreSQL: use another name, such as trapeze", name)
	case slices.Contains(reserved, name):
		return fmt.Errorf("schema name %q is a reserved word in SQL: use another name, such as trapeze_%s", name, name)
	}
	return nil
}

// Migration describes a migration file.
type Migration struct {
	Version int64
	Name    string // the file's name
}

// Migrations returns the migrations in this binary, oldest first.
func Migrations() []Migration {
	names, err := fs.Glob(migrations.Files, "*.sql")
	if err != nil {
		panic(err)
	}
	list := make([]Migration, len(names))
	for i, name := range names {
		number, _, _ := strings.Cut(name, "_")
		version, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			panic(fmt.Errorf("migration %s: want a number before the first _: %w", name, err))
		}
		list[i] = Migration{Version: version, Name: name}
	}
	slices.SortFunc(list, func(a, b Migration) int { return int(a.Version - b.Version) })
	return list
}

// Latest returns the version of the newest migration in this binary.
func Latest() int64 {
	list := Migrations()
	return list[len(list)-1].Version
}

// DB is a pool, connection or transaction from which the migrations table is read.
type DB interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// perMinor is the number of migration numbers reserved for each minor version: 1 to 999 for the first, 1000 to 1999 for the second, and so
// on. Within a minor version, migrations only add to the schema. Programs with older migrations therefore keep working during a rolling
// upgrade.
const perMinor = 1000

// Check compares the database's schema with the version that this binary needs, without changing anything. It returns [ErrNoTables],
// [ErrNoData], [ErrRowSecurity], [ErrTooOld] or [ErrTooNew] if the schema does not fit, and an [UnsupportedError] if the database cannot
// run Trapeze. It accepts a newer schema with the same minor version.
func Check(ctx context.Context, db DB, schema string) error {
	if err := CheckServer(ctx, db, schema); err != nil {
		return err
	}
	at, err := Version(ctx, db, schema)
	if err != nil {
		return err
	}
	switch latest := Latest(); {
	case at == 0:
		return fmt.Errorf("schema %q has no tables: %w", schema, ErrNoTables)
	case at < latest:
		return fmt.Errorf("schema %s is at version %d of %d: %w", schema, at, latest, ErrTooOld)
	case at/perMinor > latest/perMinor:
		return fmt.Errorf("schema %s is at version %d, this program knows %d: %w", schema, at, latest, ErrTooNew)
	}
	return nil
}

// Version returns the version of the newest migration that the schema records, or 0. It returns [ErrNoData] if the schema records none but
// has tables, and [ErrRowSecurity] if the role cannot see rows.
func Version(ctx context.Context, db DB, schema string) (at int64, err error) {
	exists, err := HasVersions(ctx, db, schema)
	if err == nil && exists {
		err = checkRowSecurity(ctx, db, schema)
	}
	if err == nil && exists {
		err = db.QueryRow(ctx, `select coalesce(max(version_id), 0) from `+pgx.Identifier{schema, "migrations"}.Sanitize()).Scan(&at)
	}
	tables := false
	if err == nil && at == 0 {
		err = db.QueryRow(ctx, `select to_regclass($1) is not null`, schema+".job_ids").Scan(&tables) // applications may have a table called jobs
	}
	switch {
	case err != nil:
		return 0, fmt.Errorf("check schema %s: %w", schema, err)
	case tables:
		return 0, fmt.Errorf("schema %s has tables but no record of its migrations: %w", schema, ErrNoData)
	}
	return at, nil
}

// HasVersions reports whether the schema has a migrations table.
func HasVersions(ctx context.Context, db DB, schema string) (exists bool, err error) {
	if err := ValidName(schema); err != nil {
		return false, err
	}
	if err := db.QueryRow(ctx, `select to_regclass($1) is not null`, schema+".migrations").Scan(&exists); err != nil {
		return false, fmt.Errorf("check schema %s: %w", schema, err)
	}
	return exists, nil
}
