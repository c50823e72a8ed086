package torture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// export writes the records that the system itself keeps. By then, all pods have exited, so all files show the same state.
func (w *World) export(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, exportWithin)
	defer cancel()
	return errors.Join(w.exportOne(ctx, "jobs", history.JobsFile), w.exportOne(ctx, "events", history.EventsFile), w.exportRows(ctx), w.exportPipelines(ctx),
		w.exportOccurrences(ctx), w.exportSchedules(ctx), w.exportKeys(ctx))
}

// exportRows exports the rows that demo.tx jobs wrote in the transactions that ended them. exportPipelines exports the status of the
// pipelines.
func (w *World) exportRows(ctx context.Context) error {
	return exportQuery[history.Row](ctx, w, history.RowsFile, `select job_id, fence, n from trapeze.demo_rows order by job_id, fence, n`)
}

func (w *World) exportPipelines(ctx context.Context) error {
	return exportQuery[history.Pipeline](ctx, w, history.PipelinesFile, `select id, status from trapeze.pipeline order by id`)
}

// exportOccurrences exports the outcomes of schedule occurrences. exportSchedules exports the versions of the schedules.
func (w *World) exportOccurrences(ctx context.Context) error {
	return exportQuery[history.Fire](ctx, w, history.OccurrencesFile, `
select schedule, fire_at, decided_at, outcome, manual, missed, job_id from trapeze.schedule_occurrences order by schedule, fire_at`)
}

func (w *World) exportSchedules(ctx context.Context) error {
	return exportQuery[history.Schedule](ctx, w, history.SchedulesFile, `
select n, at, schedule, expression, paused, anchor, undecided from torture_schedules order by n`)
}

// exportKeys exports the keys of the jobs.
func (w *World) exportKeys(ctx context.Context) error {
	return exportQuery[history.Keyed](ctx, w, history.KeysFile, `select id, key from trapeze.jobs where key is not null order by id`)
}

// exportQuery writes the results of a query to a file.
func exportQuery[T any](ctx context.Context, w *World, name, sql string) error {
	found, err := w.Admin.Query(ctx, sql)
	if err != nil {
		return fmt.Errorf("export %s: %w", name, err)
	}
	list, err := pgx.CollectRows(found, pgx.RowToStructByPos[T])
	if err != nil {
		return fmt.Errorf("export %s: %w", name, err)
	}
	to, err := history.NewWriter(w.Dir, name)
	if err != nil {
		return err
	}
	for _, one := range list {
		err = errors.Join(err, to.Write(one))
	}
	return errors.Join(err, to.Close())
}

func (w *World) exportOne(ctx context.Context, what, name string) (err error) {
	to, err := os.OpenFile(filepath.Join(w.Dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	var complaint strings.Builder
	cmd := exec.CommandContext(ctx, w.binary, "export", what)
	cmd.Env = append(cleanEnvironment(), "DATABASE_URL="+w.AppURL(), "GORACE=atexit_sleep_ms=10")
	cmd.Stdout, cmd.Stderr = to, &complaint
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("trapeze export %s: %w: %s", what, err, strings.TrimSpace(complaint.String()))
	}
	return nil
}
