// Package world is the environment of the same small program, written for River in withriver and for Trapeze in withtrapeze. The guide
// that compares them is docs/migrating/river.md; its code comes from these packages.
package world

import (
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5"
)

// World is the handlers' outside world, and a record of their effects.
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

// first reports whether it is called with this name for the first time.
func (w *World) first(what string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.visits == nil {
		w.visits = map[string]int{}
	}
	w.visits[what]++
	return w.visits[what] == 1
}

// ErrNoAddress is the error of Send for an address that does not exist.
var ErrNoAddress = errors.New("no such address")

// Send sends a mail. The first one to an address fails; those to an unknown address always fail.
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

// Arrived reports whether a parcel is there: false on the first call for it, then true.
func (w *World) Arrived(parcel string) bool { return !w.first("parcel " + parcel) }

// Pay writes an invoice into the ledger.
func Pay(ctx context.Context, tx pgx.Tx, invoice string) error {
	_, err := tx.Exec(ctx, `insert into ledger values ($1)`, invoice)
	return err
}
