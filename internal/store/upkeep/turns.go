package upkeep

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

const (
	// takeTurnSQL gives a chore of the maintenance to a pod unless somebody began it less than $2 ms ago, by the database's clock: of
	// several that ask at once, one gets it. At 0 it is given to whoever asks. A beginning that lies in the future is that of a
	// clock that was put back, and counts for nothing. Plan: primary key, one row.
	takeTurnSQL = `
insert into trapeze.maintenance as m (chore, begun_at, pod) values ($1, clock_timestamp(), $3)
on conflict (chore) do update set begun_at = excluded.begun_at, pod = excluded.pod
where $2::bigint = 0 or m.begun_at not between clock_timestamp() - $2 * interval '1 millisecond' and clock_timestamp()
returning 1`
	// endTurnSQL notes what became of it.
	endTurnSQL = `
update trapeze.maintenance set done_at = clock_timestamp(), pod = $2, count = $3, seconds = $4, error = $5 where chore = $1 returning 1`
	turnsSQL = `
select chore, begun_at, done_at, pod, count, seconds, error, extract(epoch from clock_timestamp() - coalesce(done_at, begun_at))::float8
from trapeze.maintenance order by chore`
)

// Turn is what is known of one chore of the maintenance: when it was last done, by which pod, and what came of it.
type Turn struct {
	Chore   string
	BegunAt time.Time
	DoneAt  *time.Time // nil: it has never come to its end
	Pod     string
	Count   int64
	Seconds float64
	Error   string
	Ago     float64 // seconds since it came to its end; if never, since it began
}

// TakeTurn gives a chore to a pod unless somebody began it within the given time, and reports whether it did. At 0 it does.
func TakeTurn(ctx context.Context, s *store.Store, chore, pod string, within time.Duration) (bool, error) {
	given, err := store.Rows(ctx, s, pgx.RowTo[int], takeTurnSQL, chore, within.Milliseconds(), pod)
	if err != nil {
		return false, fmt.Errorf("take the turn of %s: %w", chore, err)
	}
	return len(given) > 0, nil
}

// EndTurn notes that a chore has come to its end, also by an error.
func EndTurn(ctx context.Context, s *store.Store, t Turn) error {
	if _, err := store.Rows(ctx, s, pgx.RowTo[int], endTurnSQL, t.Chore, t.Pod, t.Count, t.Seconds, t.Error); err != nil {
		return fmt.Errorf("end the turn of %s: %w", t.Chore, err)
	}
	return nil
}

// Turns lists the chores of the maintenance that were ever begun.
func Turns(ctx context.Context, s *store.Store) ([]Turn, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[Turn], turnsSQL)
	if err != nil {
		return nil, fmt.Errorf("read when the maintenance was done: %w", err)
	}
	return list, nil
}
