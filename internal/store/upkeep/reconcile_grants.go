package upkeep

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

const (
	// wrongGrantsSQL lists lanes with a wrong sum of granted slots, or with slots granted to pods that are gone. A pod is gone if it has
	// been closed for ten minutes or has no row. Every statement that changes a grant also changes the sum, so one snapshot is sufficient.
	// Plan: lanes, slot_grants and pods are small.
	wrongGrantsSQL = `
select l.name from trapeze.lanes l
where l.granted <> coalesce((select sum(g.slots) from trapeze.slot_grants g where g.lane = l.name), 0)
	or exists (select from trapeze.slot_grants g where g.lane = l.name and ` + voidGrant + `)
order by l.name`
	// mendGrantsSQL revokes void slots and corrects the locked lanes' sums.
	mendGrantsSQL = `
with gone as (
	delete from trapeze.slot_grants g where g.lane = any($1::text[]) and ` + voidGrant + ` returning g.lane, g.slots
), truth as (
	select l.name, (coalesce((select sum(g.slots) from trapeze.slot_grants g where g.lane = l.name), 0)
		- coalesce((select sum(g.slots) from gone g where g.lane = l.name), 0))::int as granted
	from trapeze.lanes l where l.name = any($1::text[])
)
update trapeze.lanes l set granted = t.granted from truth t where l.name = t.name and l.granted <> t.granted`
	lockLanesSQL = `select name from trapeze.lanes where name = any($1::text[]) order by name for update`
)

// voidGrant is the SQL condition that is true if the pod that holds the grant g no longer exists.
const voidGrant = `not exists (select from trapeze.pods p where p.id = g.pod
	and (p.closed_at is null or p.closed_at > now() - interval '10 minutes'))`

// ReconcileGrants revokes the slots of pods that are gone, and corrects the sum of each lane's granted slots. It returns the corrected
// lanes.
func ReconcileGrants(ctx context.Context, s *store.Store) ([]string, error) {
	lanes, err := store.Rows(ctx, s, pgx.RowTo[string], wrongGrantsSQL)
	if err == nil && len(lanes) > 0 {
		err = s.Tx(ctx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, s.In(lockLanesSQL), lanes); err != nil {
				return err
			}
			_, err := store.QueryPinned(ctx, tx, pgx.RowTo[int], s.In(mendGrantsSQL), []any{lanes})
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("reconcile granted slots: %w", err)
	}
	return lanes, nil
}
