package store_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
)

// discards counts statements that discard plans.
type discards struct{ n atomic.Int64 }

func (d *discards) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if data.SQL == "discard plans" {
		d.n.Add(1)
	}
	return ctx
}

func (*discards) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestReplanAfterSlowStatement(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	config, err := pgxpool.ParseConfig(pgtest.URL(t))
	is.NoErr(err)
	var heard discards
	asked := atomic.Int64{}
	config.ConnConfig.Tracer = &heard
	//lint:ignore SA1019 a host may have set the older hook
	config.BeforeAcquire = func(context.Context, *pgx.Conn) bool { asked.Add(1); return true }
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	is.NoErr(err)
	t.Cleanup(pool.Close)
	w := newWorldOn(t, pool, store.Options{Connections: 1, TraceQueries: true})
	w.SlowFrom(time.Hour) // a busy machine must not trigger a round
	podID := w.pod("a")
	w.put(plain)
	w.claims(podID, 1)
	before := heard.n.Load()
	w.claims(podID, 1)
	is.Equal(heard.n.Load(), before) // no statement was slow
	is.True(asked.Load() > 0)        // the host's own hook is also called

	w.SlowFrom(time.Hour)
	is.True(w.Ran(time.Hour))
	is.True(!w.Ran(time.Hour)) // the second slow statement comes within the minimum interval
	w.claims(podID, 1)
	w.claims(podID, 1)
	is.Equal(heard.n.Load(), before+1)

	beside, err := w.Beside(t.Context(), 1)
	is.NoErr(err)
	defer beside.Close()
	_, err = beside.NewIDs(t.Context(), 1)
	is.NoErr(err)
	is.Equal(heard.n.Load(), before+2) // connections of a clone also discard their plans
}
