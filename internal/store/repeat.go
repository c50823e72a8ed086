package store

import (
	"context"
	"regexp"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
)

// idempotent lists the writing statements that may be sent twice. An unused block of ids is no loss.
var idempotent = map[string]bool{heartbeatSQL.text: true, idBlocksSQL.text: true, advanceIDsSQL: true, settleHistorySQL: true}

// repeatable reports whether a statement whose connection broke may be sent again, regardless of its outcome: it only reads, or it is
// idempotent. The first use of a connection after a failover fails in this way: the write reaches a socket whose other end is gone.
func repeatable(ctx context.Context, sql string, err error) bool {
	return err != nil && Unknown(err) && !pgconn.Timeout(err) && ctx.Err() == nil && (idempotent[sql] || ReadsOnly(sql))
}

// writes matches the text of our statements that change something or take a lock, including calls of our functions.
var writes = regexp.MustCompile(`(?i)\b(insert\s+into|update\s+trapeze|delete\s+from|truncate|for\s+(no\s+key\s+)?update|for\s+(key\s+)?share|` +
	`nextval|setval|pg_notify|set_config|pg_(try_)?advisory\w*|trapeze\.\w+\s*\()`)

// reading caches which statements only read.
var reading sync.Map // statement → bool

// ReadsOnly reports whether a statement only reads, and is therefore sent again when its connection breaks.
func ReadsOnly(sql string) bool {
	if known, ok := reading.Load(sql); ok {
		return known.(bool)
	}
	reads := !writes.MatchString(sql)
	reading.Store(sql, reads)
	return reads
}
