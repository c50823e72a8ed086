//go:build long

package maintenance

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// leadAndLoseIt runs every task once as the leader. Before a task's n-th batch, it terminates the session that holds the leader lock. It
// returns each task's error.
func leadAndLoseIt(ctx context.Context, pool *pgxpool.Pool, m *Maintenance, batch int) map[string]error {
	lead, s := m.lead, m.o.Session.(*session)
	defer func() { _ = s.conn.Close(ctx) }()
	ends := map[string]error{}
	for i, t := range m.tasks(nil) {
		for lead.check(ctx); lead.role() != leading && ctx.Err() == nil; lead.check(ctx) {
		}
		r, batches := &run{m: m, lead: lead, role: leading}, 0
		r.task = m.tasks(func(ctx context.Context) error {
			if batches++; batches == batch {
				if _, err := pool.Exec(ctx, `select pg_terminate_backend($1, 5000)`, s.conn.PgConn().PID()); err != nil {
					return err
				}
			}
			return r.pace(ctx)
		})[i]
		_, ends[t.name] = r.do(ctx)
	}
	return ends
}
