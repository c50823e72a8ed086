package store_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
)

func TestLockTimeoutHasKnownOutcome(t *testing.T) {
	t.Parallel()
	for name, pooled := range map[string]bool{"direct": false, "behind a pooler": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			pool := pgtest.Pool(t)
			s, err := store.New(t.Context(), pool, store.Options{Connections: 2, StatementTimeout: time.Second, BehindPooler: pooled})
			is.NoErr(err)
			t.Cleanup(s.Close)
			tx, err := pool.Begin(t.Context())
			is.NoErr(err)
			t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
			_, err = tx.Exec(t.Context(), `lock table trapeze.live`)
			is.NoErr(err)
			_, err = s.Enqueue(t.Context(), uuid.NewString(), []store.NewJob{{ID: 7, Kind: "mail", Lane: "default", Args: []byte(`{}`)}})
			is.True(store.LockTimeout(err))
			is.True(!store.Unknown(err)) // so callers report no lost connection
			is.True(store.Transient(err))
			is.True(strings.Contains(err.Error(), "had no effect"))
			is.NoErr(tx.Rollback(t.Context()))
			var jobs int
			is.NoErr(pool.QueryRow(t.Context(), `select count(*) from trapeze.jobs`).Scan(&jobs))
			is.Equal(jobs, 0)
		})
	}
}
