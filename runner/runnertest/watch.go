package runnertest

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
)

// watch is a pgx tracer that observes the statements on a pod's connections, to detect when the pod's jobs reach a given point. It is called
// before a statement is sent and after its reply has arrived.
type watch struct {
	pod     *pod
	effects map[string]store.Effect

	mu      sync.Mutex
	jobs    map[int64]*watched
	holding map[*pgx.Conn][]int64 // ids of the jobs whose claims the connection's transaction has locked
}

// watched is a job whose handler has been called.
type watched struct {
	kind     string
	returned bool
}

func newWatch(p *pod, schema string) *watch {
	return &watch{pod: p, effects: store.Effects(schema), jobs: map[int64]*watched{}, holding: map[*pgx.Conn][]int64{}}
}

// called and returned record that a job's handler has been called, or has returned.
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

// sent describes the effects of an in-flight statement. ends lists the kinds of the jobs whose claims the statement ends. keeps lists the
// kinds of the jobs for which it commits data written by the handler.
type sent struct {
	ends, keeps []string
}

type sentKey struct{}

// TraceQueryStart implements [pgx.QueryTracer].
func (w *watch) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return w.start(ctx, w.read(conn, data.SQL, data.Args))
}

// TraceQueryEnd implements [pgx.QueryTracer].
func (w *watch) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	if data.CommandTag.String() != "ROLLBACK" {
		w.end(ctx, data.Err)
	}
}

// TraceBatchStart implements [pgx.BatchTracer].
func (w *watch) TraceBatchStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	var all sent
	for _, q := range data.Batch.QueuedQueries {
		s := w.read(conn, q.SQL, q.Arguments)
		all.ends, all.keeps = append(all.ends, s.ends...), append(all.keeps, s.keeps...)
	}
	return w.start(ctx, all)
}

// TraceBatchQuery implements [pgx.BatchTracer].
func (w *watch) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements [pgx.BatchTracer].
func (w *watch) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	w.end(ctx, data.Err)
}

// start reports the points that jobs reach before statements are sent.
func (w *watch) start(ctx context.Context, s sent) context.Context {
	for _, kind := range s.ends {
		w.pod.pass(InFlush, kind)
	}
	return context.WithValue(ctx, sentKey{}, s)
}

// end reports the points that jobs reach when the replies to statements have arrived.
func (w *watch) end(ctx context.Context, err error) {
	s, _ := ctx.Value(sentKey{}).(sent)
	if err != nil || w.pod.isDead() {
		return
	}
	for _, kind := range s.keeps {
		w.pod.pass(MidStep, kind)
	}
	for _, kind := range s.ends {
		w.pod.pass(AfterFinish, kind)
	}
}

// read returns a statement's effects.
func (w *watch) read(conn *pgx.Conn, sql string, args []any) (s sent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch w.effects[sql] {
	case store.Holds:
		w.holding[conn] = store.JobsOf(args)
	case store.Keeps:
		s.keeps = w.kinds(store.JobsOf(args))
	case store.Ends:
		s.ends = w.kinds(store.JobsOf(args))
		delete(w.holding, conn) // the commit is in the same batch
	}
	switch sql {
	case "rollback":
		delete(w.holding, conn)
	case "commit":
		for _, id := range w.holding[conn] {
			// Once the handler has returned, the commit ends the job.
			if watched := w.jobs[id]; watched != nil && watched.returned {
				s.ends = append(s.ends, watched.kind)
			} else if watched != nil {
				s.keeps = append(s.keeps, watched.kind)
			}
		}
		delete(w.holding, conn)
	}
	return s
}

func (w *watch) kinds(ids []int64) (kinds []string) {
	for _, id := range ids {
		if watched := w.jobs[id]; watched != nil {
			kinds = append(kinds, watched.kind)
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
