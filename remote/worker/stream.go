package worker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/internal/engine"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/wait"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/remotepb"
)

// ErrDistrusted says that the pod does not believe the worker's certificate, or the worker the pod's: of another authority, over, or none.
var ErrDistrusted = errors.New("untrusted certificate")

// stream keeps a stream open until ctx ends, or the pods refuse the worker for good.
func (w *Worker) stream(ctx context.Context) error {
	received := false
	var without complaints
	for backoff := newBackoff(); ctx.Err() == nil; {
		server := w.servers.now().address
		open, err := w.streamOnce(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if received = received || open; open && !superseded(err) {
			backoff = newBackoff()
		}
		switch {
		case errors.Is(err, errRegained):
			continue
		case closed(err):
			w.anew(err)
			continue
		case !received && distrusted(err):
			return fmt.Errorf("%s: %w: %w", server, ErrDistrusted, err)
		case !open && refused(err) && !connect.IsWireError(err):
			return fmt.Errorf("no pod at %s: %w", server, explained(server, err))
		case !open && refused(err):
			return fmt.Errorf("%s refused the worker: %w", server, err)
		}
		w.complain(ctx, &without, open, server, explained(server, err))
		w.servers.next()
		if !backoff.Wait(ctx) {
			return nil
		}
	}
	return nil
}

// streamOnce opens the stream and takes what comes. open says that a pod served it.
func (w *Worker) streamOnce(ctx context.Context) (open bool, err error) {
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	w.mu.Lock()
	w.cut = cut
	w.mu.Unlock()
	if err := w.waitForASlot(ctx); err != nil {
		return false, err
	}
	defer func() {
		if errors.Is(context.Cause(ctx), errRegained) {
			err = errRegained
		}
	}()
	began := time.Now()
	in, err := w.servers.now().client.StreamJobs(ctx, connect.NewRequest(w.introduction()))
	if err != nil {
		return false, err
	}
	defer func() { _ = in.Close() }()
	if head := in.ResponseHeader(); strings.HasPrefix(head.Get("Content-Type"), "application/grpc") && head.Get("Grpc-Status") == "" {
		w.greet()
	}
	for in.Receive() {
		open = true
		if in.Msg().GetJobId() == 0 { // a nudge: a handler is to end
			w.hurry()
			continue
		}
		w.take(in.Msg())
	}
	if err = in.Err(); err == nil {
		err = errors.New("the pod closed the stream")
	}
	if refused(err) { // which comes after the headers
		w.mu.Lock()
		w.greets = false
		w.mu.Unlock()
	}
	return open || time.Since(began) > 2*time.Second, err
}

func (w *Worker) introduction() *remotepb.StreamJobsRequest {
	m := &remotepb.StreamJobsRequest{WorkerId: w.name(), Topics: w.opts.Kinds, Slots: int32(w.opts.Slots - w.strays()), Name: w.opts.Name, Version: w.opts.Version, Running: w.running(), Nudges: true} // #nosec G115 -- the pod refuses more than 1,000
	for _, k := range w.kinds {
		m.Kinds = append(m.Kinds, kind(k))
	}
	return m
}

func kind(k engine.RemoteKind) *remotepb.Kind {
	m := &remotepb.Kind{Name: k.Name, MaxAttempts: int32(k.MaxAttempts), MaxCrashes: int32(k.MaxCrashes)} // #nosec G115 -- small numbers from the program's own source
	if k.Timeout != nil {
		m.Timeout = durationpb.New(*k.Timeout)
	}
	if k.StaleAfter != nil {
		m.StaleAfter = durationpb.New(*k.StaleAfter)
	}
	if k.MaxAttempts > 0 {
		m.Backoff = &remotepb.Backoff{First: durationpb.New(k.Backoff.Base), Most: durationpb.New(k.Backoff.Cap)}
	}
	return m
}

// anew begins as another worker: what ran is lost.
func (w *Worker) anew(why error) {
	w.mu.Lock()
	w.id, w.trusted = uuid.NewString(), time.Time{}
	var lost []*task
	for _, t := range w.tasks {
		lost = append(lost, t)
	}
	cut, id := w.cut, w.id
	w.mu.Unlock()
	w.log.Warn("lease lost: registered again with a new worker id", telemetry.Boot, id, telemetry.Running, len(lost), telemetry.Err, why)
	for _, t := range lost {
		t.lose(job.ErrLeaseLost)
	}
	if cut != nil {
		cut(nil)
	}
}

// closed reports whether an error says that the worker's row is closed.
func closed(err error) bool {
	return connect.CodeOf(err) == connect.CodeAborted && strings.Contains(err.Error(), "worker_closed")
}

// superseded reports whether an error says that the worker has opened another stream. When it has not, somebody else has its id and its
// token: it does not hurry to take the stream back, for neither does he.
func superseded(err error) bool {
	return connect.CodeOf(err) == connect.CodeAborted && strings.Contains(err.Error(), "superseded")
}

// refused reports whether another try would be refused as well.
func refused(err error) bool {
	switch connect.CodeOf(err) {
	case connect.CodeUnauthenticated, connect.CodePermissionDenied, connect.CodeInvalidArgument, connect.CodeUnimplemented:
		return true
	}
	return false
}

// distrusted reports whether either side does not believe the other's certificate. That ends a worker at its start, when somebody looks;
// later it goes on trying, for certificates are renewed.
func distrusted(err error) bool {
	if wrong, ok := errors.AsType[*net.OpError](err); ok && wrong.Op == "remote error" && !noHTTP2(err) { // an alert of the pod's
		return true
	}
	_, ours := errors.AsType[*tls.CertificateVerificationError](err)
	return ours
}

// newBackoff returns the delays before a worker connects, reports or calls again.
func newBackoff() *wait.Backoff { return &wait.Backoff{Most: 2 * time.Second} }
