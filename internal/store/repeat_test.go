package store_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
)

func TestFirstRequestsAfterBrokenConnections(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	s, err := store.New(t.Context(), pool, store.Options{})
	is.NoErr(err)
	defer s.Close()
	podID := uuid.NewString()
	is.NoErr(s.Register(t.Context(), store.PodInfo{PodID: podID, Name: "a", Kinds: []string{"k"}}, time.Minute))
	// The server closes each connection while it is idle in the pool.
	breakAll := func() {
		t.Helper()
		is.NoErr(s.Warm(t.Context(), 4))
		_, err := pool.Exec(t.Context(), `select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'trapeze' and datname = current_database()`)
		is.NoErr(err)
	}
	for range outages {
		breakAll()
		_, err := view.Pods(t.Context(), s, true)
		is.NoErr(err)
		breakAll()
		b, err := s.Heartbeat(t.Context(), podID, time.Minute, false)
		is.NoErr(err)
		is.True(b.Open)
	}
}
