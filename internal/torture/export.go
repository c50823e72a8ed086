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

	"github.com/trapeze-run/trapeze/internal/torture/history"
)

// export writes down what the system says happened. The pods have ended, so that both files show the same moment.
func (w *World) export(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, exportWithin)
	defer cancel()
	return errors.Join(w.exportOne(ctx, "jobs", history.JobsFile), w.exportOne(ctx, "events", history.EventsFile), w.exportRows(ctx))
}

// exportRows writes down what demo.tx jobs wrote in the transactions that ended them.
func (w *World) exportRows(ctx context.Context) error {
	found, err := w.Admin.Query(ctx, `select job_id, fence, n from trapeze.demo_rows order by job_id, fence, n`)
	if err != nil {
		return fmt.Errorf("export rows: %w", err)
	}
	rows, err := pgx.CollectRows(found, pgx.RowToStructByPos[history.Row])
	if err != nil {
		return fmt.Errorf("export rows: %w", err)
	}
	to, err := history.NewWriter(w.Dir, history.RowsFile)
	if err != nil {
		return err
	}
	for _, row := range rows {
		err = errors.Join(err, to.Write(row))
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
