package work

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// Write is one write of a handler in the commit that ends its job: a function, or a statement whose result is not read.
type Write struct {
	Do   func(ctx context.Context, tx pgx.Tx) error // nil: it is a statement
	SQL  string
	Args []any
}

// Writes are writes of a handler in one transaction, in their order.
type Writes []Write

// Limits of the statements of one job, since other jobs wait for the commit that it shares with them.
const (
	maxStatements     = 100
	maxStatementBytes = 1 << 20 // of texts and arguments, about
)

// Queued reports whether all writes are statements, so that they can share a commit with those of other jobs.
func (w Writes) Queued() bool {
	return len(w) > 0 && !slices.ContainsFunc(w, func(one Write) bool { return one.Do != nil })
}

// Queue queues writes that are statements.
func (w Writes) Queue(batch *pgx.Batch) {
	for _, one := range w {
		batch.Queue(one.SQL, one.Args...)
	}
}

// Run runs all writes, up to the first error; statements that follow one another in one round trip.
func (w Writes) Run(ctx context.Context, tx pgx.Tx) error {
	for len(w) > 0 {
		if do := w[0].Do; do != nil {
			if err := do(ctx, tx); err != nil {
				return err
			}
			w = w[1:]
			continue
		}
		n := slices.IndexFunc(w, func(one Write) bool { return one.Do != nil })
		if n < 0 {
			n = len(w)
		}
		if err := w[:n].send(ctx, tx); err != nil {
			return err
		}
		w = w[n:]
	}
	return nil
}

// send sends statements in one round trip. The error of one has its number.
func (w Writes) send(ctx context.Context, tx pgx.Tx) error {
	batch := &pgx.Batch{}
	w.Queue(batch)
	results := tx.SendBatch(ctx, batch)
	for i := range w {
		if _, err := results.Exec(); err != nil {
			_ = results.Close()
			if before, ok := errors.AsType[pgx.ErrPreprocessingBatch](err); ok { // nothing was run
				i = max(0, slices.IndexFunc(w, func(one Write) bool { return one.SQL == before.SQL() }))
			}
			return fmt.Errorf("statement %d of %d: %w", i+1, len(w), err)
		}
	}
	return results.Close()
}

// Size is about how many bytes statements and their arguments have on the wire.
func (w Writes) Size() (bytes int) {
	for _, one := range w {
		bytes += len(one.SQL)
		for _, a := range one.Args {
			bytes += size(a)
		}
	}
	return bytes
}

func size(arg any) (bytes int) {
	switch a := arg.(type) {
	case string:
		return len(a)
	case []byte:
		return len(a)
	case json.RawMessage:
		return len(a)
	case pgx.NamedArgs:
		for _, v := range a {
			bytes += size(v)
		}
		return bytes
	case pgx.StrictNamedArgs:
		return size(pgx.NamedArgs(a))
	}
	return 8
}

// check refuses statements that are too many or too large, or could change more than rows: others follow in the same transaction.
func (w Writes) check() error {
	statements, bytes := 0, w.Size()
	for _, one := range w {
		if one.Do != nil {
			continue
		}
		statements++
		if word := strings.ToLower(firstWord.FindString(leading.ReplaceAllString(one.SQL, ""))); !slices.Contains(verbs, word) {
			return fmt.Errorf("%w: statement %d begins with %q, want one of %s: use InTx for others", job.ErrInvalid, statements, word, strings.Join(verbs, ", "))
		}
	}
	switch {
	case statements > maxStatements:
		return fmt.Errorf("%w: %d statements of a job, at most %d", job.ErrTooLarge, statements, maxStatements)
	case bytes > maxStatementBytes:
		return fmt.Errorf("%w: statements of %d bytes of a job, at most %d", job.ErrTooLarge, bytes, maxStatementBytes)
	}
	return nil
}

// verbs begin the statements that a job may queue: what ends the transaction, or sets something for those after it, is not among them.
var verbs = []string{"insert", "update", "delete", "merge", "select", "with", "call"}

var (
	leading   = regexp.MustCompile(`^(\s|\(|--[^\n]*(\n|$)|/\*(?s:.*?)\*/)*`) // space, comments
	firstWord = regexp.MustCompile(`^\w*`)
)
