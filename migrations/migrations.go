// Package migrations holds the schema as numbered SQL files, one subject each, in the format of pressly/goose. They name
// the schema trapeze; [github.com/trapeze-run/trapeze/internal/migrate] replaces the name on request. Changes only
// expand the schema or, a release later, contract it: pods of the previous release run beside them.
package migrations

import "embed"

// Files are the migrations, named NNNNN_subject.sql.
//
//go:embed *.sql
var Files embed.FS
