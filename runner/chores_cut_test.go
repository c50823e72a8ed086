package runner

import (
	"context"
	"errors"
)

// LeadAndLoseIt does one round of the maintenance as the pod that leads, and has the session that holds the lead cut when each
// chore is about to begin the batch of the given number, from 1. It returns what became of each. For tests outside.
func (r *Runner) LeadAndLoseIt(ctx context.Context, batch int) map[string]error {
	lead := &leader{r: r}
	defer lead.resign()
	ends := map[string]error{}
	for i, c := range r.chores(nil) {
		for lead.look(ctx); lead.role() != leads && ctx.Err() == nil; lead.look(ctx) {
		}
		t, batches := &turn{r: r, lead: lead, role: leads}, 0
		t.chore = r.chores(func(ctx context.Context) error {
			if batches++; batches == batch {
				if _, err := r.pool.Exec(ctx, `select pg_terminate_backend($1, 5000)`, lead.conn.PgConn().PID()); err != nil {
					return err
				}
			}
			return t.goOn(ctx)
		})[i]
		_, ends[c.name] = t.do(ctx)
	}
	return ends
}

// LeadIsLost reports that a chore was stopped since another pod may lead.
func LeadIsLost(err error) bool { return errors.Is(err, errLeadLost) }
