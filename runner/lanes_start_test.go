package runner_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// holder delays the reply to the first statement that reads the kinds' default lanes, until release is closed.
type holder struct {
	first   sync.Once
	read    chan struct{} // closed when the database has replied
	release chan struct{}
}

type lanesRead struct{}

func (h *holder) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, "from trapeze.lane_kinds") && strings.Contains(data.SQL, "trapeze.pods") {
		return context.WithValue(ctx, lanesRead{}, true)
	}
	return ctx
}

func (h *holder) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if ctx.Value(lanesRead{}) != nil {
		h.first.Do(func() {
			close(h.read)
			<-h.release
		})
	}
}

// A command changes a lane after a starting pod has read the lane's settings but before the pod has applied them.
func TestLaneChangeDuringPodStart(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	observer := pgtest.Connect(t, url)
	config, err := pgxpool.ParseConfig(url)
	is.NoErr(err)
	h := &holder{read: make(chan struct{}), release: make(chan struct{})}
	config.ConnConfig.Tracer = h
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	is.NoErr(err)
	t.Cleanup(pool.Close)
	r := newRunner(t, pool, runner.Options{TraceQueries: true, HeartbeatInterval: time.Minute, LeaseDuration: 10 * time.Minute}, map[string]handler{"mail": succeed})
	ready := make(chan struct{})
	go func() { defer close(ready); run(t, r) }()
	<-h.read
	set := make(chan error, 1)
	go func() {
		_, err := r.Admin("the boss").SetLane(t.Context(), "mail", job.LaneChange{Slots: job.To(2), Kinds: &[]string{"mail"}})
		set <- err
	}()
	pgtest.Wait(t, "the lane is set", func() bool {
		return queryOne[int](t, observer, `select count(*)::int from trapeze.lane_kinds where kind = 'mail'`) == 1
	})
	close(h.release)
	is.NoErr(<-set)
	<-ready
	is.Equal(waitEnded(t, r, enqueue(t, r, rawArgs("mail"))).Lane, "mail")
}
