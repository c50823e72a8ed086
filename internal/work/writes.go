package work

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// Write is a write that a handler makes in the commit that ends its job: a function, or a statement whose result is not read.
type Write struct {
	Do   func(ctx context.Context, tx pgx.Tx) error // nil if it is a statement
	SQL  string
	Args []any
}

// Writes holds a handler's writes in a transaction, in order.
type Writes []Write

// These limits apply to each job's statements, because other jobs that share the commit have to wait for them.
const (
	maxStatements     = 100
	maxStatementBytes = 1 << 20 // approximate size of texts and arguments; struct fields do not count
)

// Queued reports whether all writes are statements and can therefore share a commit with other jobs' statements.
func (w Writes) Queued() bool {
	return len(w) > 0 && !slices.ContainsFunc(w, func(write Write) bool { return write.Do != nil })
}

// Queue adds the statements to a batch. If a statement fails, failed is called with its index.
func (w Writes) Queue(batch *pgx.Batch, failed func(i int)) {
	for i, write := range w {
		batch.Queue(write.SQL, write.Args...).Fn = func(results pgx.BatchResults) error {
			_, err := results.Exec()
			if err != nil {
				failed(i)
			}
			return err
		}
	}
}

// Prepares reports whether err occurred while a statement or its arguments were being prepared, before anything was sent. The statement's
// index is i.
func (w Writes) Prepares(err error) (i int, is bool) {
	before, ok := errors.AsType[pgx.ErrPreprocessingBatch](err)
	if ok {
		i = slices.IndexFunc(w, func(write Write) bool { return write.Do == nil && write.SQL == before.SQL() })
	}
	return i, ok && i >= 0
}

// Run runs the writes in order until one fails. Consecutive statements take a single round trip. A statement's error includes the
// statement's number.
func (w Writes) Run(ctx context.Context, tx pgx.Tx) error {
	statements, before := 0, 0
	for _, write := range w {
		if write.Do == nil {
			statements++
		}
	}
	for len(w) > 0 {
		if do := w[0].Do; do != nil {
			if err := do(ctx, tx); err != nil {
				return err
			}
			w = w[1:]
			continue
		}
		n := slices.IndexFunc(w, func(write Write) bool { return write.Do != nil })
		if n < 0 {
			n = len(w)
		}
		if i, err := w[:n].send(ctx, tx); err != nil {
			return fmt.Errorf("statement %d of %d: %w", before+i+1, statements, err)
		}
		before += n
		w = w[n:]
	}
	return nil
}

// send sends statements in a single round trip. If one fails, i is its index.
func (w Writes) send(ctx context.Context, tx pgx.Tx) (i int, err error) {
	batch := &pgx.Batch{}
	w.Queue(batch, func(failed int) { i = failed })
	err = tx.SendBatch(ctx, batch).Close()
	if before, is := w.Prepares(err); is {
		i = before
	}
	return i, err
}

// Size returns the approximate size of the statements and their arguments on the wire, in bytes.
func (w Writes) Size() (bytes int) {
	for _, write := range w {
		bytes += len(write.SQL)
		for _, a := range write.Args {
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
	case nil, bool, int, int32, int64, float64, time.Time:
		return 8
	case pgx.NamedArgs:
		for _, v := range a {
			bytes += size(v)
		}
		return bytes
	case pgx.StrictNamedArgs:
		return size(pgx.NamedArgs(a))
	}
	switch v := reflect.ValueOf(arg); v.Kind() {
	case reflect.String:
		return v.Len()
	case reflect.Slice, reflect.Array:
		switch v.Type().Elem().Kind() {
		case reflect.Uint8:
			return v.Len()
		case reflect.String, reflect.Slice, reflect.Array, reflect.Pointer, reflect.Interface:
			for i := range v.Len() {
				bytes += size(v.Index(i).Interface())
			}
			return bytes
		}
		return 8 * v.Len()
	case reflect.Pointer:
		if !v.IsNil() {
			return size(v.Elem().Interface())
		}
	}
	return 8
}

// check rejects statements that exceed the limits. It also rejects statements with effects beyond rows, such as changes of settings,
// because other statements may follow in the same transaction.
func (w Writes) check() error {
	statements, bytes := 0, w.Size()
	for _, write := range w {
		if write.Do != nil {
			continue
		}
		statements++
		if word := strings.ToLower(firstWord.FindString(leading.ReplaceAllString(write.SQL, ""))); !slices.Contains(verbs, word) {
			return fmt.Errorf("%w: statement %d begins with %q: want one of %s, use InTx for others", job.ErrInvalid, statements, word, strings.Join(verbs, ", "))
		}
	}
	switch {
	case statements > maxStatements:
		return fmt.Errorf("%w: the job has %d statements, at most %d are allowed", job.ErrTooLarge, statements, maxStatements)
	case bytes > maxStatementBytes:
		return fmt.Errorf("%w: the statements of the job have %d bytes, at most %d are allowed", job.ErrTooLarge, bytes, maxStatementBytes)
	}
	return nil
}

// verbs lists the words with which a queued statement may begin. They exclude statements that end the transaction or change settings for
// later statements.
var verbs = []string{"insert", "update", "delete", "merge", "select", "with", "call"}

var (
	leading   = regexp.MustCompile(`^(\s|\(|--[^\n]*(\n|$)|/\*(?s:.*?)\*/)*`) // white space and comments
	firstWord = regexp.MustCompile(`^\w*`)
)
