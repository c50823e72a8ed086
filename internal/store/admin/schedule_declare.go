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

// DeclareSchedule makes a schedule that the program declares, or brings in what the program says differently than before. What an
// operator has set otherwise stays, and so does his taking it away. It tells what became different; nil: nothing.
func DeclareSchedule(ctx context.Context, s *store.Store, name string, d job.ScheduleSetting) (changed []string, err error) {
	err = s.Tx(ctx, func(tx pgx.Tx) error {
		changed, err = declareIn(ctx, s, tx, name, inOneLine(d))
		return err
	})
	if errors.Is(err, errMeanwhile) {
		return DeclareSchedule(ctx, s, name, d) // another pod that starts
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
	was, after := inOneLine(row.ScheduleSetting), d
	if there {
		if after, err = merged(was, row.Declared, d); err != nil {
			return nil, err
		}
	}
	changed := differing(was, after)
	if there && len(changed) == 0 && same(row.Declared, declared) {
		return nil, nil
	}
	if err := writeSchedule(ctx, s, tx, name, there, after, declared, row.Removed); err != nil {
		return nil, err
	}
	if len(changed) == 0 || row.Removed {
		return nil, nil
	}
	deed := Deed{Actor: "system", Action: "schedule.set", Target: scheduleTarget(name), After: audited(after)}
	if there {
		deed.Before = audited(was)
	}
	return changed, operates(ctx, s, tx, operation{Deed: deed, Event: "schedule.changed", About: name})
}

// merged is what becomes of a setting when the program declares d, and declared what last says: each field is the program's unless an
// operator has set it otherwise. Of a schedule that the program did not know, all is the operator's.
func merged(is job.ScheduleSetting, last json.RawMessage, d job.ScheduleSetting) (job.ScheduleSetting, error) {
	if last == nil {
		return is, nil
	}
	var before job.ScheduleSetting
	if err := json.Unmarshal(last, &before); err != nil {
		return is, fmt.Errorf("read what was declared: %w", err)
	}
	before = inOneLine(before)
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
