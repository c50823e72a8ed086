package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/labstack/echo/v4"
	"github.com/trapeze-run/trapeze/runner"
)

// large is the smallest amount for which an order needs approval.
const large = 100_000 // in cents

// Order is an order as clients send and receive it.
type Order struct {
	ID       string `json:"id"` // chosen by the client; the same ID means the same order
	Item     string `json:"item"`
	Region   string `json:"region"`
	Cents    int64  `json:"cents"`
	Card     string `json:"card,omitempty"`
	State    string `json:"state"`              // placed, shipped or refunded
	Pipeline int64  `json:"pipeline,omitempty"` // the pipeline's ID in Trapeze
}

func (s *service) endpoints(r *runner.Runner) http.Handler {
	e := echo.New()
	e.PUT("/orders/:id", func(c echo.Context) error { return s.place(c, r) })
	e.GET("/orders/:id", func(c echo.Context) error {
		o, err := s.order(c)
		if err != nil {
			return err
		}
		return c.JSON(http.StatusOK, o)
	})
	e.POST("/orders/:id/approve", func(c echo.Context) error {
		o, err := s.order(c)
		if err == nil {
			err = r.Admin("clerk").Approve(c.Request().Context(), o.Pipeline)
		}
		return answer(c, err)
	})
	e.DELETE("/orders/:id", func(c echo.Context) error { // cancelling undoes the completed steps
		o, err := s.order(c)
		if err == nil {
			_, err = r.Admin("customer").CancelPipeline(c.Request().Context(), o.Pipeline)
		}
		return answer(c, err)
	})
	e.POST("/payments/:job", func(c echo.Context) error { return paid(c, r) })
	e.POST("/reports/:day", func(c echo.Context) error { // a request while a report is unfinished does not start a second report
		_, err := r.Enqueue(c.Request().Context(), DailyReport{Day: c.Param("day")}, runner.Unique(c.Param("day"), runner.WhileActive))
		return answer(c, err)
	})
	e.GET("/reports/:day", s.report)
	return e
}

// place stores the order and submits its pipeline in one transaction, so that neither exists without the other.
func (s *service) place(c echo.Context, r *runner.Runner) error {
	ctx, o := c.Request().Context(), Order{State: "placed"}
	if err := json.NewDecoder(c.Request().Body).Decode(&o); err != nil {
		return echo.NewHTTPError(http.StatusBadRequest, err.Error())
	}
	if o.ID = c.Param("id"); o.Cents <= 0 {
		return echo.NewHTTPError(http.StatusBadRequest, "cents: want more than 0")
	}
	err := r.Tx(ctx, func(tx pgx.Tx) error {
		made, err := tx.Exec(ctx, `insert into orders (id, item, region, cents, card) values ($1, $2, $3, $4, $5) on conflict do nothing`,
			o.ID, o.Item, o.Region, o.Cents, o.Card)
		if err != nil || made.RowsAffected() == 0 {
			return err // the order already exists
		}
		options := []runner.EnqueueOption{runner.Subject("order " + o.ID), runner.Pipeline("order " + o.ID)}
		if o.Cents >= large {
			options = append(options, runner.NeedsApproval())
		}
		submitted, err := r.EnqueueTx(ctx, tx, fulfil(o), options...)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `update orders set pipeline = $2 where id = $1`, o.ID, submitted.PipelineID)
		return err
	})
	return answer(c, err)
}

// paid handles the payment provider's webhook. It uses the ID and token that were sent to the provider to complete the deferred job. The
// provider retries the call until it receives a reply, so the call may arrive twice, but the job is completed only once.
func paid(c echo.Context, r *runner.Runner) error {
	id, err := strconv.ParseInt(c.Param("job"), 10, 64)
	if err != nil {
		return echo.ErrNotFound
	}
	var receipt Receipt
	if err := json.NewDecoder(c.Request().Body).Decode(&receipt); err != nil {
		return echo.NewHTTPError(http.StatusBadRequest, err.Error())
	}
	var options []runner.CompleteOption
	if receipt.Declined != "" {
		options = append(options, runner.PartFailed(errors.New(receipt.Declined)))
	}
	token := strings.TrimPrefix(c.Request().Header.Get("Authorization"), "Bearer ")
	err = r.Complete(c.Request().Context(), id, token, receipt, options...)
	if errors.Is(err, runner.ErrAlreadyTerminal) {
		err = nil // the job was cancelled or has already completed, and there is nothing that the provider could do about it
	}
	return answer(c, err)
}

func (s *service) order(c echo.Context) (o Order, err error) {
	err = s.pool.QueryRow(c.Request().Context(), `select id, item, region, cents, state, pipeline from orders where id = $1`, c.Param("id")).
		Scan(&o.ID, &o.Item, &o.Region, &o.Cents, &o.State, &o.Pipeline)
	if errors.Is(err, pgx.ErrNoRows) {
		err = echo.NewHTTPError(http.StatusNotFound, fmt.Sprintf("unknown order %q", c.Param("id")))
	}
	return o, err
}

// answer sends a success status, or the status and message that correspond to err.
func answer(c echo.Context, err error) error {
	switch {
	case err == nil:
		return c.JSON(http.StatusAccepted, map[string]bool{"accepted": true})
	case errors.Is(err, runner.ErrNotAwaitingApproval), errors.Is(err, runner.ErrAlreadyTerminal):
		return echo.NewHTTPError(http.StatusConflict, err.Error())
	case errors.Is(err, runner.ErrWrongToken), errors.Is(err, runner.ErrNotFound):
		return echo.ErrNotFound
	}
	return err
}
