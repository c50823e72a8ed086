// Package migrations contains the schema as numbered SQL files, one topic per file, in the format of pressly/goose. They use the schema
// name trapeze, which [github.com/trapeze-run/trapeze/internal/migrate] replaces on request. Because pods of the previous release keep
// running during an upgrade, a migration may expand the schema, but may contract it only one release later.
package migrations

import "embed"

// Files are the migrations, named NNNNN_subject.sql.
//
//go:embed *.sql
var Files embed.FS
