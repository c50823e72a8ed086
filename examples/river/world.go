// Package world provides the environment for two versions of a small program: withriver uses River and withtrapeze uses Trapeze. The guide
// docs/migrating/river.md compares the two and shows their code.
package world

import (
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5"
)

// World simulates the systems that the handlers call, and records their effects.
type World struct {
	mu     sync.Mutex
	did    map[string]int
	visits map[string]int
}

// Did records an effect.
func (w *World) Did(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.did == nil {
		w.did = map[string]int{}
	}
	w.did[what]++
}

// Record returns how often each effect happened.
func (w *World) Record() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	record := make(map[string]int, len(w.did))
	for what, n := range w.did {
		record[what] = n
	}
	return record
}

// first reports whether this is the first call with the given name.
func (w *World) first(what string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.visits == nil {
		w.visits = map[string]int{}
	}
	w.visits[what]++
	return w.visits[what] == 1
}

// ErrNoAddress is returned by Send for an address that does not exist.
var ErrNoAddress = errors.New("no such address")

// Send sends an email. The first email to an address fails, and emails to an unknown address always fail.
func (w *World) Send(to string) error {
	if to == "nobody" {
		return ErrNoAddress
	}
	if w.first("mail to " + to) {
		return errors.New("the mail server is busy")
	}
	w.Did("mail to " + to)
	return nil
}

// Arrived reports whether a parcel has arrived. It returns false on the first call for a parcel and true after that.
func (w *World) Arrived(parcel string) bool { return !w.first("parcel " + parcel) }

// Pay inserts an invoice into the ledger.
func Pay(ctx context.Context, tx pgx.Tx, invoice string) error {
	_, err := tx.Exec(ctx, `insert into ledger values ($1)`, invoice)
	return err
}
