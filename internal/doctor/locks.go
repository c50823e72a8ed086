package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/text"
)

// Locks finds sessions that block Trapeze's sessions with a lock. It reads no Trapeze table, so such a lock does not delay it.
func Locks(ctx context.Context, s *store.Store) ([]Finding, error) {
	holders, err := view.LockHolders(ctx, s)
	if err != nil {
		return nil, err
	}
	if len(holders) == 0 {
		return []Finding{{"locks", Healthy, "no session waits for a lock for more than a second", ""}}, nil
	}
	var found []Finding
	for _, h := range holders {
		says, do := LockText(h)
		found = append(found, Finding{"locks", Failing, says, do})
	}
	return found, nil
}

// LockText describes a session that blocks others, and the remedy.
func LockText(h view.LockHolder) (says, do string) {
	blocked := text.Count(h.Waiting, "session", "sessions") + " of Trapeze, the first for " + text.Seconds(h.Longest)
	if h.PID == 0 {
		if h.Prepared == "" {
			return "a prepared transaction blocks " + blocked, "select * from pg_prepared_xacts, then commit prepared or rollback prepared"
		}
		return fmt.Sprintf("the prepared transaction %q (role %s, %s) blocks %s", h.Prepared, h.User, text.Seconds(h.Age), blocked),
			fmt.Sprintf("commit prepared %s, or rollback prepared %[1]s, in this database", literal(h.Prepared))
	}
	statement := strings.Join(strings.Fields(h.Statement), " ")
	about := []string{h.Application, "role " + h.User, text.Seconds(h.Age)}
	if h.Application == "" {
		about = about[1:]
	}
	if strings.HasPrefix(h.State, "idle") {
		statement = h.State + ", last statement " + statement
	}
	do = fmt.Sprintf("select pg_terminate_backend(%d), or wait until it ends", h.PID)
	if h.State == "" {
		statement = "its statement is hidden from this role"
		do += "; to see its statement, grant pg_read_all_stats to this role"
	}
	return fmt.Sprintf("pid %d (%s: %s) blocks %s", h.PID, strings.Join(about, ", "), text.Short(statement, 120), blocked), do
}
