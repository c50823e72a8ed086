package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// Payment is a request to the provider. It is sent with an Idempotency-Key header.
type Payment struct {
	Cents   int64
	Card    string
	Webhook string // URL to which the Receipt is sent, repeatedly until it is accepted
	Token   string // sent with the Receipt
}

// Receipt is the body of the provider's webhook.
type Receipt struct {
	Number   string `json:"number"`
	Declined string `json:"declined,omitempty"` // the reason; empty if the payment succeeded
}

// provider simulates a payment provider and keeps its books in memory. It behaves like a real one: requests with the same Idempotency-Key
// count as one payment, the result arrives later by webhook, and failed webhooks are retried.
type provider struct {
	http.ServeMux
	mu       sync.Mutex
	charges  map[string]int // number of charges by idempotency key
	refunds  map[string]int // number of refunds by idempotency key
	closed   map[string]bool
	receipts map[string]Payment // receipts that have not been delivered
}

func newProvider() *provider {
	p := &provider{charges: map[string]int{}, refunds: map[string]int{}, closed: map[string]bool{}, receipts: map[string]Payment{}}
	p.HandleFunc("POST /charges", func(_ http.ResponseWriter, r *http.Request) { p.book(r, p.charge) })
	p.HandleFunc("POST /refunds", func(_ http.ResponseWriter, r *http.Request) { p.book(r, p.refund) })
	return p
}

func (p *provider) book(r *http.Request, entry func(key string, payment Payment)) {
	var payment Payment
	_ = json.NewDecoder(r.Body).Decode(&payment)
	p.mu.Lock()
	defer p.mu.Unlock()
	entry(r.Header.Get("Idempotency-Key"), payment)
}

func (p *provider) charge(key string, payment Payment) {
	if p.closed[key] {
		payment.Card = "refunded"
	} else if p.charges[key] == 0 && payment.Card != "declined" {
		p.charges[key]++
	}
	p.receipts[key] = payment
}

func (p *provider) refund(key string, _ Payment) {
	p.closed[key] = true
	if p.refunds[key] < p.charges[key] {
		p.refunds[key]++
	}
}

// deliver sends all undelivered receipts and returns how many were accepted.
func (p *provider) deliver(ctx context.Context) (arrived int) {
	p.mu.Lock()
	due := make(map[string]Payment, len(p.receipts))
	for key, payment := range p.receipts {
		due[key] = payment
	}
	p.mu.Unlock()
	for key, payment := range due {
		receipt := Receipt{Number: "receipt-" + key}
		if payment.Card == "declined" || payment.Card == "refunded" {
			receipt = Receipt{Declined: "card " + payment.Card}
		}
		body, _ := json.Marshal(receipt)
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, payment.Webhook, bytes.NewReader(body))
		if err != nil {
			continue
		}
		request.Header.Set("Authorization", "Bearer "+payment.Token)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			continue
		}
		_ = response.Body.Close()
		if response.StatusCode < 300 {
			arrived++
			p.mu.Lock()
			delete(p.receipts, key)
			p.mu.Unlock()
		}
	}
	return arrived
}

func (p *provider) deliverEvery(ctx context.Context, interval time.Duration) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(interval):
			p.deliver(ctx)
		}
	}
}
