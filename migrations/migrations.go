// Package migrations holds the schema as numbered SQL files, one subject each, in the format of pressly/goose. They name
// the schema trapeze; [github.com/trapeze-run/trapeze/internal/migrate] puts another name in its place when asked.
// Changes only expand or, a release later, contract: pods of the previous release run beside them.
package migrations

import "embed"

// Files are the migrations, named NNNNN_subject.sql.
//
//go:embed *.sql
var Files embed.FS
