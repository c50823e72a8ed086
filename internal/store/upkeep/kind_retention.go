package upkeep

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

const (
	// retentionsSQL reads, for each kind with an override, the number of seconds for which jobs that ended in a state are kept; -1 means
	// forever. Plan: a small table.
	retentionsSQL = `select kind, case when keep_s = 0 then -1 else keep_s end from trapeze.kind_retention where state = $1 order by kind`
	// thinnedSQL reads the rule by which jobs were deleted from a day that is kept. noteThinnedSQL records that rule, and deletes the
	// records of dropped days. dayHasRowsSQL reports whether a day has any rows left. Plan: primary key; catalogs; the day's first row.
	thinnedSQL     = `select gone from trapeze.thinned_days where state = $1 and day = $2::date`
	noteThinnedSQL = `
with old as (
	delete from trapeze.thinned_days t where to_regclass('trapeze.' || 'done_' || t.state || '_' || to_char(t.day, 'YYYYMMDD')) is null
)
insert into trapeze.thinned_days (state, day, gone) values ($1, $2::date, $3)
on conflict (state, day) do update set gone = excluded.gone returning 1`
	dayHasRowsSQL = `
select coalesce((select true from trapeze.done d
	where d.state = $1 and d.finished_at >= $2::timestamptz and d.finished_at < $2::timestamptz + interval '24 hours' limit 1), false)`
)

// retentions holds the retention overrides of kinds. Negative values mean forever.
type retentions []kindRetention

type kindRetention struct {
	Kind    string
	Seconds int64
}

func retentionsOf(ctx context.Context, s *store.Store, state string) (retentions, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[kindRetention], retentionsSQL, state)
	if err != nil {
		return nil, fmt.Errorf("read the retention of kinds: %w", err)
	}
	return list, nil
}

// of returns the rule for a day. The keep argument is the retention of kinds without an override.
func (r retentions) of(d pastDay, keep time.Duration) rule {
	u := rule{rest: d.over(keep), kinds: []string{}}
	for _, k := range r {
		if d.over(time.Duration(k.Seconds)*time.Second) != u.rest {
			u.kinds = append(u.kinds, k.Kind)
		}
	}
	return u
}

// rule defines the kinds whose jobs are deleted from a day: either all kinds except the listed ones, or only the listed ones.
type rule struct {
	rest  bool // all except kinds
	kinds []string
}

func (u rule) none() bool { return !u.rest && len(u.kinds) == 0 }
func (u rule) all() bool  { return u.rest && len(u.kinds) == 0 }

func (u rule) String() string {
	kinds := strings.Join(slices.Sorted(slices.Values(u.kinds)), "\n")
	if u.rest {
		return "all but\n" + kinds
	}
	return "only\n" + kinds
}
