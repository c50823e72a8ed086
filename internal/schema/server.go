package schema

import (
	"context"
	"errors"
	"fmt"
	"regexp"
)

// UnsupportedError is returned by [CheckServer] and [Check] for a database that speaks PostgreSQL's protocol but cannot run Trapeze. It
// states the reason and the alternative in one sentence.
type UnsupportedError struct{ Database, Reason, Instead string }

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s cannot run Trapeze, because %s: %s", e.Database, e.Reason, e.Instead)
}

const (
	plainPostgres  = "use PostgreSQL 14 or newer"
	auroraPostgres = "use PostgreSQL 14 or newer, such as RDS or Aurora PostgreSQL"
)

// byVersion lists the databases that can be identified by version(). Aurora DSQL returns only "PostgreSQL 16", whereas PostgreSQL adds the
// platform and the compiler.
//
// The reasons come from the vendors' documentation, as of November 2026:
//   - CockroachDB: "postgresql-compatibility" of v26.3 and issue 41522 (LISTEN), "life-of-a-distributed-transaction" (hybrid clock). It reports
//     server_version 18 and in_hot_standby off, so nothing but version() reveals it.
//   - YugabyteDB: "transactions-overview" (hybrid time). LISTEN and advisory locks exist since v2025.2.
//   - Redshift: "c_unsupported-postgresql-features" and "r_VERSION".
//   - Aurora DSQL: "working-with-postgresql-compatibility-unsupported-features" and "working-with-systems-tables".
//   - Citus: "reference_workarounds" of v13 and "api_metadata" (pg_dist_partition).
var byVersion = []struct {
	version *regexp.Regexp
	UnsupportedError
}{
	{regexp.MustCompile(`^CockroachDB `), UnsupportedError{"CockroachDB", "it has no LISTEN, and orders transactions by a hybrid clock " +
		"instead of the transaction IDs and snapshots by which Trapeze reads events", plainPostgres}},
	{regexp.MustCompile(`^PostgreSQL \S+-YB-`), UnsupportedError{"YugabyteDB", "it orders transactions by a hybrid clock instead of the " +
		"transaction IDs and snapshots by which Trapeze reads events", plainPostgres}},
	{regexp.MustCompile(`, Redshift [0-9]`), UnsupportedError{"Redshift", "it has no indexes, no triggers and no enforced unique keys", auroraPostgres}},
	{regexp.MustCompile(`^PostgreSQL \d+$`), auroraDSQL},
}

var auroraDSQL = UnsupportedError{"Aurora DSQL", "it has no triggers, no partitions and no PL/pgSQL", auroraPostgres}

// Catalog relations that exist only in Aurora DSQL and only with the extension Citus, respectively.
const (
	dsqlRoles   = "sys.iam_pg_role_mappings"
	citusTables = "pg_catalog.pg_dist_partition"
)

// ErrEncoding is returned by [CheckServer] and [Check] if sessions would read the strings of this program, which are UTF-8, in another encoding.
var ErrEncoding = errors.New("the client_encoding of the sessions is")

const knownRelationSQL = `
select coalesce(min(n.nspname || '.' || c.relname), ''), current_setting('client_encoding') from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'sys' and c.relname = 'iam_pg_role_mappings' or n.nspname = 'pg_catalog' and c.relname = 'pg_dist_partition'`

// distributedSQL returns the name of a distributed table or reference table in the schema. A local table that Citus manages only for its
// foreign keys has no colocation and the replication model s.
const distributedSQL = `
select coalesce(min(c.relname), '') from pg_catalog.pg_dist_partition p join pg_catalog.pg_class c on c.oid = p.logicalrelid
where c.relnamespace = to_regnamespace($1) and not (p.partmethod = 'n' and p.repmodel = 's' and p.colocationid = 0)`

// CheckServer returns an [UnsupportedError] if the server is not PostgreSQL but a database that imitates it, or if Citus has distributed a
// table of the schema. It calls version() first, because these databases reject various other statements.
func CheckServer(ctx context.Context, db DB, schema string) error {
	var version, encoding, relation, distributed string
	if err := db.QueryRow(ctx, `select version()`).Scan(&version); err != nil {
		return err
	}
	for _, one := range byVersion {
		if one.version.MatchString(version) {
			return &one.UnsupportedError
		}
	}
	if err := db.QueryRow(ctx, knownRelationSQL).Scan(&relation, &encoding); err != nil {
		return err
	}
	if encoding != "UTF8" {
		return fmt.Errorf("%w %s: add client_encoding=UTF8 to the connection string", ErrEncoding, encoding)
	}
	switch relation {
	case dsqlRoles:
		return &auroraDSQL
	case citusTables:
		if err := db.QueryRow(ctx, distributedSQL, schema).Scan(&distributed); err != nil || distributed == "" {
			return err
		}
		return &UnsupportedError{"Citus", fmt.Sprintf("it has distributed the table %s.%s and does not lock rows on several nodes", schema, distributed),
			"run undistribute_table for each table, or citus_schema_undistribute for the schema, or use a database without Citus"}
	}
	return nil
}

// ErrRowSecurity is returned by [Check] and [Version] if the role reads a table as if it had no rows.
var ErrRowSecurity = errors.New("row-level security hides its rows: connect as the owner, disable it, or create policies that show all rows to this role")

// hiddenSQL finds the tables whose rows are hidden from the role, because row-level security is enabled and no policy lets the role read.
// A partition uses the policies of its table.
const hiddenSQL = `
select coalesce(min(c.relname), ''), count(*), current_user::text from pg_catalog.pg_class c
where c.relnamespace = to_regnamespace($1) and (c.relkind = 'p' or c.relkind = 'r' and not c.relispartition)
	and c.relrowsecurity and row_security_active(c.oid) and not exists (select from pg_catalog.pg_policy p
		where p.polrelid = c.oid and p.polpermissive and p.polcmd in ('*', 'r')
			and (0 = any (p.polroles) or exists (select from unnest(p.polroles) r where pg_has_role(r, 'usage'))))`

// checkRowSecurity returns [ErrRowSecurity] with the name of a table whose rows are hidden.
func checkRowSecurity(ctx context.Context, db DB, schema string) error {
	var table, role string
	var tables int
	if err := db.QueryRow(ctx, hiddenSQL, schema).Scan(&table, &tables, &role); err != nil || tables == 0 {
		return err
	}
	return fmt.Errorf("role %s sees no row of %s.%s (%d such tables): %w", role, schema, table, tables, ErrRowSecurity)
}
