// Package migrations contains the schema as numbered SQL files, one topic per file, in the format of pressly/goose. Each file creates its
// objects in their final form; until 0.1.0 is published, the files are edited in place. Each table has a comment that defines a row,
// and each index a comment with the question that it answers.
//
// The files use the schema name trapeze, which [github.com/trapeze-run/trapeze/internal/migrate] replaces on request. Because pods of the
// previous release keep running during an upgrade, a migration may expand the schema, but may contract it only one release later.
package migrations

import "embed"

// Files are the migrations, named NNNNN_subject.sql.
//
//go:embed *.sql
var Files embed.FS
