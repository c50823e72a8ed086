package maintenance

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// leadAndLoseIt does every task once as the pod that leads, and has the session that holds the lead cut when each task is about to begin the
// batch of the given number, from 1. It returns the error of each.
func leadAndLoseIt(ctx context.Context, pool *pgxpool.Pool, m *Maintenance, batch int) map[string]error {
	lead := &leader{m: m}
	defer lead.resign()
	ends := map[string]error{}
	for i, t := range m.tasks(nil) {
		for lead.check(ctx); lead.role() != leads && ctx.Err() == nil; lead.check(ctx) {
		}
		r, batches := &run{m: m, lead: lead, role: leads}, 0
		r.task = m.tasks(func(ctx context.Context) error {
			if batches++; batches == batch {
				if _, err := pool.Exec(ctx, `select pg_terminate_backend($1, 5000)`, lead.conn.PgConn().PID()); err != nil {
					return err
				}
			}
			return r.pace(ctx)
		})[i]
		_, ends[t.name] = r.do(ctx)
	}
	return ends
}
