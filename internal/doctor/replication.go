package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/trapeze-run/trapeze/internal/store/view"
)

// replication finds published tables whose updates PostgreSQL refuses, and triggers that a session_replication_role disables.
func (e *examination) replication(ctx context.Context) error {
	tables, err := view.Unidentified(ctx, e.store)
	if err != nil {
		return err
	}
	triggers, err := view.WeakTriggers(ctx, e.store)
	if err != nil {
		return err
	}
	for _, table := range tables {
		name := e.store.Schema() + "." + table
		e.find("replication", Failing, name+" is published without a replica identity: PostgreSQL refuses its updates and deletes",
			"alter table "+name+" replica identity full")
	}
	names := make([]string, len(triggers))
	remedies := make([]string, len(triggers))
	for i, t := range triggers {
		names[i] = fmt.Sprintf("%s on %s", t.Name, t.Table)
		remedies[i] = fmt.Sprintf("alter table %s.%s enable always trigger %s", e.store.Schema(), t.Table, t.Name)
	}
	if len(triggers) > 0 {
		e.find("triggers", Failing, "not always enabled: "+strings.Join(names, ", ")+": on-failure jobs may be lost, or the audit log changed",
			strings.Join(remedies, "; "))
	}
	return nil
}
