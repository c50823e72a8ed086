package store

import (
	"context"
	"regexp"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
)

// idempotent are the statements that write and may be sent twice: a block of ids that nobody uses is no loss.
var idempotent = map[string]bool{heartbeatSQL.text: true, idBlocksSQL.text: true, advanceIDsSQL: true, settleHistorySQL: true}

// repeatable reports whether a statement whose connection broke under it may be sent again, whatever became of it: it reads
// only, or doing it twice is as good as once. The first use of a connection after a failover fails so; the write reaches a socket whose other
// end is gone.
func repeatable(ctx context.Context, sql string, err error) bool {
	return err != nil && Unknown(err) && !pgconn.Timeout(err) && ctx.Err() == nil && (idempotent[sql] || ReadsOnly(sql))
}

// writes matches what a statement of ours that changes something, or takes a lock, has in it: our own functions as well.
var writes = regexp.MustCompile(`(?i)\b(insert\s+into|update\s+trapeze|delete\s+from|truncate|for\s+(no\s+key\s+)?update|for\s+(key\s+)?share|` +
	`nextval|setval|pg_notify|set_config|pg_(try_)?advisory\w*|trapeze\.\w+\s*\()`)

// reading remembers which statements only read.
var reading sync.Map // statement → bool

// ReadsOnly reports whether a statement reads only, and so is sent again when its connection breaks.
func ReadsOnly(sql string) bool {
	if known, ok := reading.Load(sql); ok {
		return known.(bool)
	}
	reads := !writes.MatchString(sql)
	reading.Store(sql, reads)
	return reads
}
