package admin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// allRetentionsSQL lists the retention overrides of all kinds. Plan: one pass over kind_retention, which is small.
	allRetentionsSQL = `select kind, state, keep_s from trapeze.kind_retention order by kind, state`
	// lockRetentionSQL reads one override and locks it until the transaction ends. Plan: primary key lookup.
	lockRetentionSQL = `select keep_s from trapeze.kind_retention where kind = $1 and state = $2 for update`
	// setRetentionSQL sets an override. Plan: one insert, or a primary key lookup.
	setRetentionSQL = `
insert into trapeze.kind_retention (kind, state, keep_s) values ($1, $2, $3)
on conflict (kind, state) do update set keep_s = excluded.keep_s`
	// deleteRetentionSQL deletes an override. Plan: primary key lookup.
	deleteRetentionSQL = `delete from trapeze.kind_retention where kind = $1 and state = $2`
)

// Retentions returns the retention overrides, by kind and state.
func Retentions(ctx context.Context, s *store.Store) ([]job.Retention, error) {
	list, err := store.Rows(ctx, s, pgx.RowToStructByPos[job.Retention], allRetentionsSQL)
	if err != nil {
		return nil, fmt.Errorf("list the retention of kinds: %w", err)
	}
	return list, nil
}

// SetRetention sets how long jobs of a kind that ended in the given state are kept, or removes the override if keep is nil. If nothing
// changes, it writes no audit entry and no event. It returns [job.ErrInvalidSetting] if the setting is invalid.
func SetRetention(ctx context.Context, s *store.Store, kind string, state job.State, keep *job.Seconds, actor string) (done job.RetentionChanged, err error) {
	wanted := job.Retention{Kind: kind, State: state}
	if keep != nil {
		wanted.Keep = *keep
	}
	if err = wanted.Validate(); err == nil {
		err = s.Tx(ctx, func(tx pgx.Tx) error {
			done, err = setRetentionIn(ctx, s, tx, kind, state, keep, actor)
			return err
		})
	}
	if err != nil {
		return job.RetentionChanged{}, fmt.Errorf("%w (retention of %s jobs of kind %q)", err, state, kind)
	}
	return done, nil
}

func setRetentionIn(ctx context.Context, s *store.Store, tx pgx.Tx, kind string, state job.State, keep *job.Seconds, actor string) (job.RetentionChanged, error) {
	done := job.RetentionChanged{Kind: kind, State: state, After: keep}
	before, err := store.Query(ctx, s, tx, pgx.RowTo[job.Seconds], lockRetentionSQL, kind, state)
	if err != nil {
		return done, err
	}
	if len(before) > 0 {
		done.Before = &before[0]
	}
	if same := (done.Before == nil) == (keep == nil) && (keep == nil || *keep == *done.Before); same {
		return done, nil
	}
	done.Changed = true
	if keep == nil {
		_, err = tx.Exec(ctx, s.In(deleteRetentionSQL), kind, state)
	} else {
		_, err = tx.Exec(ctx, s.In(setRetentionSQL), kind, state, *keep)
	}
	if err != nil {
		return done, err
	}
	type kept struct {
		State job.State    `json:"state"`
		Keep  *job.Seconds `json:"keep_s"` // null stands for the default
	}
	return done, operates(ctx, s, tx, operation{
		AuditEntry: AuditEntry{Actor: actor, Action: "retention.set", Target: "kind " + kind, Before: kept{state, done.Before}, After: kept{state, keep}},
		Event:      "retention.changed", About: kind,
	})
}
