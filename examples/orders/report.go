package main

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/labstack/echo/v4"
	"github.com/trapeze-run/trapeze/runner"
)

type DailyReport struct{ Day string } // for example 2026-11-23; empty means the day before the job was submitted
type RegionReport struct{ Day, Region string }
type StoreReport struct{ Day string }

func (DailyReport) Kind() string  { return "daily_report" }
func (RegionReport) Kind() string { return "region_report" }
func (StoreReport) Kind() string  { return "store_report" }

// Line is a report's line for one region.
type Line struct {
	Region  string `json:"region"`
	Shipped int    `json:"shipped"`
	Cents   int64  `json:"cents"`
}

// dailyReport submits one job for each region with orders, and a join that runs once all of them have ended.
func (s *service) dailyReport(ctx context.Context, j *runner.Job[DailyReport]) (*runner.Outcome, error) {
	day := j.Args.Day
	if day == "" {
		day = j.CreatedAt().UTC().AddDate(0, 0, -1).Format(time.DateOnly)
	}
	rows, _ := s.pool.Query(ctx, `select distinct region from orders where (placed_at at time zone 'UTC')::date = $1::text::date order by region`, day)
	regions, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	var reports []runner.Args
	for _, region := range regions {
		reports = append(reports, RegionReport{Day: day, Region: region})
	}
	return runner.FanOut(reports...).Join(StoreReport{Day: day}), nil
}

func (s *service) regionReport(ctx context.Context, j *runner.Job[RegionReport]) (*runner.Outcome, error) {
	line := Line{Region: j.Args.Region}
	err := s.pool.QueryRow(ctx, `
		select count(*), coalesce(sum(cents), 0) from orders
		where (placed_at at time zone 'UTC')::date = $1::text::date and region = $2 and state = 'shipped'`, j.Args.Day, j.Args.Region).
		Scan(&line.Shipped, &line.Cents)
	return runner.Done(line), err
}

// storeReport is the join. It reads the results of the regions' jobs.
func (s *service) storeReport(ctx context.Context, j *runner.Job[StoreReport]) (*runner.Outcome, error) {
	lines := []Line{}
	for branch, err := range j.Branches(ctx) {
		var line Line
		if err == nil {
			err = branch.Result(&line) // if a region's job failed, no report is stored, because it would be incomplete
		}
		if err != nil {
			return nil, err
		}
		lines = append(lines, line)
	}
	return runner.Done(nil).InTx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `insert into reports values ($1::text::date, $2) on conflict (day) do update set lines = excluded.lines`, j.Args.Day, lines)
		return err
	}), nil
}

// report responds with the report for a day.
func (s *service) report(c echo.Context) error {
	var lines json.RawMessage
	err := s.pool.QueryRow(c.Request().Context(), `select lines from reports where day::text = $1`, c.Param("day")).Scan(&lines)
	if err == pgx.ErrNoRows {
		return echo.ErrNotFound
	}
	if err != nil {
		return err
	}
	return c.JSONBlob(http.StatusOK, lines)
}
