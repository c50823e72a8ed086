package engine

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/identity"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

// As long as nobody can read whether a write was committed, it is not sent again, and its outcome stays unknown even if a later error would
// mean that it was refused.
func TestUnreadableOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		s := &shared{Identity: identity.New(identity.Services{Metrics: telemetry.New()}, identity.Options{PodID: "a", Slots: 1})}
		lost := io.ErrUnexpectedEOF
		is.True(store.Unknown(lost))
		unreadable := errors.New("the database does not respond")
		sent := 0
		send := func(context.Context) error { sent++; return &pgconn.PgError{Code: "23505"} }
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		final := func(err error) bool { return !store.Unknown(err) }
		err := s.untilKnown(ctx, lost, func(context.Context) (bool, error) { return false, unreadable }, send, final)
		is.True(store.Unknown(err))
		is.Equal(sent, 0)

		// The first attempt may have been committed later, so a refusal of the second one proves nothing.
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err = s.untilKnown(ctx, lost, func(context.Context) (bool, error) {
			if sent == 0 {
				return false, nil
			}
			return false, unreadable
		}, send, final)
		is.True(store.Unknown(err))
		is.Equal(sent, 1)

		// The write is sent again once the read-back shows that it was not committed.
		reads := 0
		err = s.untilKnown(t.Context(), lost, func(context.Context) (bool, error) {
			if reads++; reads < 3 {
				return false, unreadable
			}
			return false, nil
		}, send, final)
		is.True(store.Refused(err))
		is.Equal(sent, 2)
	})
}
