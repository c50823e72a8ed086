package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/runner/runnertest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// shop is the service with pods that crash where the test tells them to, and with a payment provider whose webhooks the test delivers.
type shop struct {
	*runnertest.Harness
	t        *testing.T
	pool     *pgxpool.Pool
	provider *provider
	url      string
}

func open(t *testing.T) *shop {
	t.Helper()
	pool := pgtest.Connect(t, pgtest.EmptyURL(t))
	if err := createTables(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	p := newProvider()
	provider := httptest.NewServer(p)
	t.Cleanup(provider.Close)
	s := &service{pool: pool, provider: provider.URL}
	h := runnertest.New(t, pool, options(), s.register)
	h.Timeout = 2 * time.Minute // several tests share the machine, so waits may take long
	front := httptest.NewServer(s.endpoints(h.Runner()))
	t.Cleanup(front.Close)
	s.address = front.URL
	return &shop{h, t, pool, p, front.URL}
}

// order places an order. It can be called twice for the same order.
func (s *shop) order(id, item, region, card string, cents int) {
	s.t.Helper()
	body := fmt.Sprintf(`{"item":%q,"region":%q,"card":%q,"cents":%d}`, item, region, card, cents)
	if status, answer := call(s.t, "PUT", s.url+"/orders/"+id, body); status != http.StatusAccepted {
		s.t.Fatalf("order %s: %d %s", id, status, answer)
	}
}

// finish runs jobs and delivers webhooks until none are left.
func (s *shop) finish() {
	for s.RunUntilIdle(); s.provider.deliver(s.t.Context()) > 0; {
		s.RunUntilIdle()
	}
}

func (s *shop) state(id string) (state string) {
	s.t.Helper()
	if err := s.pool.QueryRow(s.t.Context(), `select state from orders where id = $1`, id).Scan(&state); err != nil {
		s.t.Fatal(err)
	}
	return state
}

// settled checks that each order has been either shipped and paid for once or refunded, and that the stock matches.
func (s *shop) settled() {
	s.t.Helper()
	is := is.New(s.t)
	rows, err := s.pool.Query(s.t.Context(), `
		select o.id, o.state, exists(select from reservations r where r."order" = o.id) from orders o`)
	is.NoErr(err)
	defer rows.Close()
	for rows.Next() {
		var id, state string
		var reserved bool
		is.NoErr(rows.Scan(&id, &state, &reserved))
		charged, refunded := s.provider.charges[id], s.provider.refunds[id]
		ok := state == "shipped" && charged == 1 && refunded == 0 && reserved ||
			state == "refunded" && charged <= 1 && charged == refunded && !reserved
		if !ok {
			s.t.Errorf("order %s is %s, charged %d times, refunded %d times, reserved: %v", id, state, charged, refunded, reserved)
		}
	}
	is.NoErr(rows.Err())
	var total int
	is.NoErr(s.pool.QueryRow(s.t.Context(), `select sum(items_left) + (select count(*) from reservations) from stock`).Scan(&total))
	is.Equal(total, 103) // whether in stock or reserved, no item was lost
}

func call(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(answer)
}

func TestOrdersDespiteProcessDeaths(t *testing.T) {
	t.Parallel()
	for _, at := range deaths {
		t.Run(at.String(), func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			s := open(t)
			for _, kind := range []string{"charge", "reserve", "ship", "release", "refund"} {
				s.DieAt(at, kind) // one crash after another; all five must occur
			}
			s.order("moon", "lamp", "moon", "visa", 4200)
			s.finish()
			s.order("fine", "lamp", "north", "visa", 4200)
			s.order("poor", "lamp", "north", "declined", 4200)
			s.order("none", "unicorn", "north", "visa", 4200)
			s.finish()
			is.Equal(s.Crashes(), 5)
			is.Equal(s.state("moon"), "refunded")
			is.Equal(s.state("fine"), "shipped")
			is.Equal(s.state("poor"), "refunded") // the card was declined
			is.Equal(s.state("none"), "refunded") // the item is out of stock
			s.settled()
		})
	}
}

// The provider receives three requests, but the handler never returns. The refund still follows, because the pipeline declares it.
func TestOrderChargeKillsEveryPod(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	s := open(t)
	for range 3 {
		s.DieAt(runnertest.BeforeFinish, "charge")
	}
	s.order("1", "lamp", "north", "visa", 4200)
	s.finish()
	is.Equal(s.state("1"), "refunded")
	is.Equal(s.provider.charges["1"], 1) // the card was charged before the refund
	s.settled()
}

func TestConcurrentSameOrder(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	s := open(t)
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() { s.order("1", "lamp", "north", "visa", 4200) })
	}
	clients.Wait()
	s.finish()
	is.Equal(len(s.Jobs("charge")), 1)
	is.Equal(s.Jobs("charge")[0].Lane, "payments")
	is.Equal(s.Jobs("ship")[0].Lane, "warehouse") // the job does not use a slot in the payments lane
	is.Equal(s.state("1"), "shipped")
	s.settled()
}

func TestWebhookRepeatedOrWrongToken(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	s := open(t)
	s.order("1", "lamp", "north", "visa", 4200)
	s.RunUntilIdle()
	paid := s.provider.receipts["1"]
	status, _ := call(t, "POST", paid.Webhook, `{"number":"forged"}`)
	is.Equal(status, http.StatusNotFound) // a webhook without the token is rejected
	is.Equal(s.state("1"), "placed")
	s.finish()
	s.provider.receipts["1"] = paid // as if the provider had not received the reply
	s.finish()
	is.Equal(len(s.provider.receipts), 0) // now the provider has received the reply
	is.Equal(s.state("1"), "shipped")
	s.settled()
}

// The test runs the commands in README.md against the program, in order. Each comment in a command block is text that the response must
// eventually contain.
func TestTheReadmesTourWorks(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	readme, err := os.ReadFile("README.md")
	is.NoErr(err)
	ctx, stop := context.WithCancel(t.Context())
	out, ended := &printed{}, make(chan error, 1)
	database := pgtest.EmptyURL(t)
	go func() { ended <- run(ctx, database, "127.0.0.1:0", out) }()
	pgtest.Wait(t, "the program prints its URL", func() bool { return out.address() != "" })

	command := regexp.MustCompile(`(?m)^curl (?:-X (\w+) )?http://127\.0\.0\.1:8090(\S+)(?: -d '(.*)')?(?: +# (.*))?$`)
	commands := command.FindAllStringSubmatch(string(readme), -1)
	is.Equal(len(commands), strings.Count(string(readme), "\ncurl ")) // the test parsed every command
	for _, c := range commands {
		method, path, body, want := c[1], c[2], c[3], c[4]
		if method == "" {
			method = http.MethodGet
		}
		pgtest.Wait(t, c[0], func() bool {
			status, answer := call(t, method, out.address()+path, body)
			return status < 300 && strings.Contains(answer, want)
		})
	}
	r, err := runner.New(pgtest.Connect(t, database), options())
	is.NoErr(err)
	defer r.Close()
	fire, err := r.Admin("tester").TriggerSchedule(t.Context(), "daily-report", nil)
	is.NoErr(err) // the schedule is declared
	ran, err := r.Wait(t.Context(), *fire.JobID)
	is.NoErr(err)
	is.Equal(ran.State, runner.StateSucceeded)
	stop()
	is.NoErr(<-ended) // the program drains and exits
}

// printed collects the program's output.
type printed struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (p *printed) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *printed) address() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return regexp.MustCompile(`http://\S+`).FindString(p.text.String())
}
