package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/trapeze-run/trapeze/runner"
)

type Charge struct {
	Order string
	Cents int64
	Card  string `secret:"true"` // hidden in lists, the dashboard and the log
}
type Reserve struct{ Order, Item string }
type Ship struct{ Order, Region string }
type Release struct{ Order string }
type Refund struct{ Order string }

func (Charge) Kind() string  { return "charge" }
func (Reserve) Kind() string { return "reserve" }
func (Ship) Kind() string    { return "ship" }
func (Release) Kind() string { return "release" }
func (Refund) Kind() string  { return "refund" }

// fulfil returns an order's pipeline. The pipeline declares the refund for the charge step, although the outcome of charge below declares
// it too: a pod can crash between the request to the provider and the return of the outcome.
func fulfil(o Order) runner.Args {
	return runner.Chain(
		runner.With(Charge{Order: o.ID, Cents: o.Cents, Card: o.Card}, runner.OnFailureOrCancel(Refund{o.ID})),
		Reserve{Order: o.ID, Item: o.Item},
		Ship{Order: o.ID, Region: o.Region})
}

func (s *service) register(r *runner.Runner) {
	patient := runner.Backoff{Base: time.Second, Cap: time.Hour}
	runner.Handle(r, s.charge, runner.Retry(8, patient), runner.Timeout(10*time.Second))
	runner.Handle(r, s.reserve)
	runner.Handle(r, s.ship)
	runner.Handle(r, s.release, runner.Retry(30, patient), runner.MaxCrashes(30)) // a compensation must succeed
	runner.Handle(r, s.refund, runner.Retry(30, patient), runner.MaxCrashes(30), runner.Timeout(10*time.Second))
	runner.Handle(r, s.dailyReport)
	runner.Handle(r, s.regionReport)
	runner.Handle(r, s.storeReport)
	r.DeclareSchedule("daily-report", "15 6 * * *", DailyReport{}, runner.Zone("Europe/Zurich"), runner.SkipOverlap())
}

// charge requests the payment from the provider and then waits for the provider's webhook without using a slot or a goroutine. After a
// crash or a lost reply, it may send the request twice. The provider charges only once, because both requests carry the order's ID as their
// idempotency key.
func (s *service) charge(ctx context.Context, j *runner.Job[Charge]) (*runner.Outcome, error) {
	token, err := j.Token(ctx)
	if err != nil {
		return nil, err
	}
	err = s.ask(ctx, "/charges", j.Args.Order, Payment{
		Cents: j.Args.Cents, Card: j.Args.Card, Webhook: fmt.Sprintf("%s/payments/%d", s.address, j.ID()), Token: token,
	})
	return runner.Deferred(1).OnFailureOrCancel(Refund{j.Args.Order}), err
}

// reserve takes the item from the stock in the commit that ends the job, so the item is taken exactly once.
func (s *service) reserve(_ context.Context, j *runner.Job[Reserve]) (*runner.Outcome, error) {
	return runner.Done(nil).InTx(func(ctx context.Context, tx pgx.Tx) error {
		taken, err := tx.Exec(ctx, `update stock set items_left = items_left - 1 where item = $1 and items_left > 0`, j.Args.Item)
		if err == nil && taken.RowsAffected() == 0 {
			return runner.Permanent(errors.New("out of stock: " + j.Args.Item))
		}
		if err == nil {
			_, err = tx.Exec(ctx, `insert into reservations values ($1, $2)`, j.Args.Order, j.Args.Item)
		}
		return err
	}).OnFailureOrCancel(Release{j.Args.Order}), nil
}

func (s *service) ship(_ context.Context, j *runner.Job[Ship]) (*runner.Outcome, error) {
	if j.Args.Region == "moon" {
		return nil, runner.Permanent(errors.New("no carrier goes to the moon"))
	}
	return runner.Done(nil).InTx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `update orders set state = 'shipped' where id = $1`, j.Args.Order)
		return err
	}), nil
}

// release undoes reserve. It returns items only if a reservation exists, so it is safe to repeat.
func (s *service) release(_ context.Context, j *runner.Job[Release]) (*runner.Outcome, error) {
	return runner.Done(nil).InTx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			with gone as (delete from reservations where "order" = $1 returning item)
			update stock set items_left = items_left + 1 from gone where stock.item = gone.item`, j.Args.Order)
		return err
	}), nil
}

// refund undoes charge. If the refund reaches the provider before the charge, it prevents the charge.
func (s *service) refund(ctx context.Context, j *runner.Job[Refund]) (*runner.Outcome, error) {
	if err := s.ask(ctx, "/refunds", j.Args.Order, Payment{}); err != nil {
		return nil, err
	}
	return runner.Done(nil).InTx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `update orders set state = 'refunded' where id = $1`, j.Args.Order)
		return err
	}), nil
}

// ask sends a request to the payment provider. Requests with the same key count as one payment.
func (s *service) ask(ctx context.Context, path, key string, p Payment) error {
	body, err := json.Marshal(p)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.provider+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Idempotency-Key", key)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode >= 300 {
		return fmt.Errorf("%s: the payment provider responded %s", path, response.Status)
	}
	return nil
}
