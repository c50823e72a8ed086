package store

import (
	"context"
	"regexp"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
)

// idempotent lists the statements that write but can safely be repeated. An unused block of ids does no harm.
var idempotent = map[string]bool{heartbeatSQL.text: true, idBlocksSQL.text: true, advanceIDsSQL: true, settleHistorySQL: true}

// repeatable reports whether a statement whose connection broke can be resent regardless of its outcome, because it only reads or is
// idempotent. After a failover, the first use of each connection fails in this way, because the server end of the connection no longer
// exists.
func repeatable(ctx context.Context, sql string, err error) bool {
	return err != nil && Unknown(err) && !pgconn.Timeout(err) && ctx.Err() == nil && (idempotent[sql] || ReadsOnly(sql))
}

// writes matches the text of statements that change data or take locks, including calls to Trapeze's SQL functions.
var writes = regexp.MustCompile(`(?i)\b(insert\s+into|update\s+trapeze|delete\s+from|truncate|for\s+(no\s+key\s+)?update|for\s+(key\s+)?share|` +
	`nextval|setval|pg_notify|set_config|pg_(try_)?advisory\w*|trapeze\.\w+\s*\()`)

// reading caches the result of [ReadsOnly] for each statement.
var reading sync.Map // statement → bool

// ReadsOnly reports whether a statement only reads. Such a statement is resent if its connection breaks.
func ReadsOnly(sql string) bool {
	if known, ok := reading.Load(sql); ok {
		return known.(bool)
	}
	reads := !writes.MatchString(sql)
	reading.Store(sql, reads)
	return reads
}
