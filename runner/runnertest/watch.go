package runnertest

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// watch follows a pod's jobs by what its connections send, to know when they pass a point. It is a tracer of pgx, which sees a
// statement before it is sent and after its answer.
type watch struct {
	pod     *pod
	effects map[string]store.Effect

	mu      sync.Mutex
	jobs    map[int64]*watched
	holding map[*pgx.Conn]int64 // the job whose claim the connection's transaction holds
}

// watched is a job whose handler was called.
type watched struct {
	kind     string
	returned bool
}

func newWatch(p *pod, schema string) *watch {
	return &watch{pod: p, effects: store.Effects(schema), jobs: map[int64]*watched{}, holding: map[*pgx.Conn]int64{}}
}

// called and returned note what became of a job's handler.
func (w *watch) called(id int64, kind string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.jobs[id] = &watched{kind: kind}
}

func (w *watch) returned(id int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.jobs[id].returned = true
}

// sent is what a statement that is under way does: it ends the claims of jobs of some kinds, or keeps work of a handler.
type sent struct {
	ends, keeps []string
}

type sentKey struct{}

// TraceQueryStart implements [pgx.QueryTracer].
func (w *watch) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s := w.read(conn, data)
	for _, kind := range s.ends {
		w.pod.pass(InFlush, kind)
	}
	return context.WithValue(ctx, sentKey{}, s)
}

// TraceQueryEnd implements [pgx.QueryTracer].
func (w *watch) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	s, _ := ctx.Value(sentKey{}).(sent)
	if data.Err != nil || w.pod.isDead() || data.CommandTag.String() == "ROLLBACK" {
		return
	}
	for _, kind := range s.keeps {
		w.pod.pass(MidStep, kind)
	}
	for _, kind := range s.ends {
		w.pod.pass(AfterFinish, kind)
	}
}

// read tells what a statement does.
func (w *watch) read(conn *pgx.Conn, data pgx.TraceQueryStartData) (s sent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch w.effects[data.SQL] {
	case store.Holds:
		for _, id := range store.JobsOf(data.Args) {
			w.holding[conn] = id
		}
	case store.Keeps:
		s.keeps = w.kinds(store.JobsOf(data.Args))
	case store.Ends:
		s.ends = w.kinds(store.JobsOf(data.Args))
	}
	id, holds := w.holding[conn]
	switch {
	case data.SQL == "rollback":
		delete(w.holding, conn)
	case data.SQL == "commit" && holds:
		delete(w.holding, conn)
		// After the handler has returned it is the end that is committed.
		if one := w.jobs[id]; one != nil && one.returned {
			s.ends = []string{one.kind}
		} else if one != nil {
			s.keeps = []string{one.kind}
		}
	}
	return s
}

func (w *watch) kinds(ids []int64) (kinds []string) {
	for _, id := range ids {
		if one := w.jobs[id]; one != nil {
			kinds = append(kinds, one.kind)
		}
	}
	return kinds
}

// TraceConnectStart implements [pgx.ConnectTracer].
func (w *watch) TraceConnectStart(ctx context.Context, _ pgx.TraceConnectStartData) context.Context {
	return ctx
}

// TraceConnectEnd implements [pgx.ConnectTracer].
func (w *watch) TraceConnectEnd(_ context.Context, data pgx.TraceConnectEndData) {
	if data.Err == nil {
		w.pod.wire.opened(data.Conn.PgConn().PID())
	}
}
