package view

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// withinBytes limits the amount of JSON that a response holds in memory; the last job may exceed it. Arguments and results may each be up
// to 1 MiB, and plans even larger. Without the limit, a page of a thousand jobs could exhaust the memory of the process.
const withinBytes = 8 << 20

func jobBytes(j job.Job) int           { return len(j.Args) + len(j.Result) + len(j.Planned) }
func pipelineBytes(p job.Pipeline) int { return len(p.Planned) }

var errFull = errors.New("enough for one page")

// rowsWithin is like [store.Rows], but ends the page when its rows exceed the size limit. In that case, full is true, and more rows may
// follow.
func rowsWithin[T any](ctx context.Context, s *store.Store, scan pgx.RowToFunc[T], bytes func(T) int, sql string, args ...any) (list []T, full bool, err error) {
	var from pgx.CollectableRow
	left := 0
	_, err = store.Rows(ctx, s, func(row pgx.CollectableRow) (none struct{}, err error) {
		if row != from { // the first row of this attempt
			from, list, left = row, nil, withinBytes
		}
		if left <= 0 {
			return none, errFull
		}
		one, err := scan(row)
		list, left = append(list, one), left-bytes(one)
		return none, err
	}, sql, args...)
	if errors.Is(err, errFull) {
		return list, true, nil
	}
	return list, false, err
}

// leanJobs returns a function that scans jobs. Once a response exceeds the size limit, the function omits arguments, results and plans. It
// is used for responses that must contain all their jobs.
func leanJobs() pgx.RowToFunc[job.Job] {
	left := withinBytes
	return func(row pgx.CollectableRow) (job.Job, error) {
		j, err := scanJob(row)
		if left -= jobBytes(j); left < 0 {
			j.Args, j.Result, j.Planned = nil, nil, nil
		}
		return j, err
	}
}
