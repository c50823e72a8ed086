package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// DeclareSchedule creates a schedule that the program declares, or applies the settings that the program has changed. It keeps settings
// that an operator has changed, and does not restore a schedule that an operator has deleted. It returns the names of the changed settings,
// or nil if there are none.
func DeclareSchedule(ctx context.Context, s *store.Store, name string, d job.ScheduleSetting) (changed []string, err error) {
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		changed, err = declareIn(ctx, s, tx, name, normalize(d))
		return err
	})
	if errors.Is(err, errMeanwhile) {
		return DeclareSchedule(ctx, s, name, d) // another pod that is starting has created the schedule
	}
	if err != nil {
		return nil, fmt.Errorf("declare schedule %q: %w", name, err)
	}
	return changed, nil
}

func declareIn(ctx context.Context, s *store.Store, tx pgx.Tx, name string, d job.ScheduleSetting) ([]string, error) {
	declared, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	row, err := lockSchedule(ctx, s, tx, name)
	there := err == nil
	if err != nil && !errors.Is(err, job.ErrUnknownSchedule) {
		return nil, err
	}
	was, after := normalize(row.ScheduleSetting), d
	if there {
		if after, err = mergeDeclared(was, row.Declared, d); err != nil {
			return nil, err
		}
	}
	changed := changedFields(was, after)
	if there && len(changed) == 0 && same(row.Declared, declared) {
		return nil, nil
	}
	if err := writeSchedule(ctx, s, tx, name, there, after, declared, row.Removed); err != nil {
		return nil, err
	}
	if len(changed) == 0 || row.Removed {
		return nil, nil
	}
	entry := AuditEntry{Actor: "system", Action: "schedule.set", Target: scheduleTarget(name), After: redactArgs(after)}
	if there {
		entry.Before = redactArgs(was)
	}
	return changed, operates(ctx, s, tx, operation{AuditEntry: entry, Event: "schedule.changed", About: name})
}

// mergeDeclared applies the declaration d to is, the current setting. Fields that equal the program's previous declaration, last, take
// their values from d. Other fields were changed by an operator and stay unchanged. If last is nil, the program has not declared the
// schedule before, and all fields stay unchanged.
func mergeDeclared(is job.ScheduleSetting, last json.RawMessage, d job.ScheduleSetting) (job.ScheduleSetting, error) {
	if last == nil {
		return is, nil
	}
	var before job.ScheduleSetting
	if err := json.Unmarshal(last, &before); err != nil {
		return is, fmt.Errorf("decode the previous declaration: %w", err)
	}
	before = normalize(before)
	after := is
	for i := range reflect.TypeFor[job.ScheduleSetting]().NumField() {
		operators, programs := reflect.ValueOf(&after).Elem().Field(i), reflect.ValueOf(before).Field(i)
		if reflect.DeepEqual(operators.Interface(), programs.Interface()) {
			operators.Set(reflect.ValueOf(d).Field(i))
		}
	}
	return after, nil
}

func same(a, b json.RawMessage) bool { return string(compact(a)) == string(compact(b)) }
