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

	"github.com/trapeze-run/trapeze/internal/routine"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/remotepb"
)

// ErrDistrusted means that the pod or the worker does not trust the other's certificate: the certificate was issued by an unknown
// authority, has expired, or is missing.
var ErrDistrusted = errors.New("untrusted certificate")

// stream keeps a stream open until ctx is cancelled or the pods reject the worker permanently.
func (w *Worker) stream(ctx context.Context) error {
	received := false
	var without complaints
	for backoff := newBackoff(); ctx.Err() == nil; {
		server := w.servers.now().address
		open, err := w.streamOnce(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if received = received || open; open && !isSuperseded(err) {
			backoff = newBackoff()
		}
		switch {
		case errors.Is(err, errSlotFreed):
			continue
		case isClosed(err):
			w.restart(err)
			continue
		case !received && isDistrusted(err):
			return fmt.Errorf("%s: %w: %w", server, ErrDistrusted, err)
		case !open && isRefused(err) && !connect.IsWireError(err):
			return fmt.Errorf("no pod at %s: %w", server, withHint(server, err))
		case !open && isRefused(err):
			return fmt.Errorf("%s refused the worker: %w", server, err)
		}
		w.complain(ctx, &without, open, server, withHint(server, err))
		w.servers.next()
		if !backoff.Wait(ctx) {
			return nil
		}
	}
	return nil
}

// streamOnce opens the stream and starts the jobs that it receives. lasted reports whether the stream received a message or was open for
// more than two seconds.
func (w *Worker) streamOnce(ctx context.Context) (lasted bool, err error) {
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	w.mu.Lock()
	w.cut = cut
	w.mu.Unlock()
	if err := w.waitForASlot(ctx); err != nil {
		return false, err
	}
	defer func() {
		if errors.Is(context.Cause(ctx), errSlotFreed) {
			err = errSlotFreed
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
		lasted = true
		if in.Msg().GetJobId() == 0 { // a nudge: a handler's context must be cancelled, or its stack was requested
			w.heartbeatNow()
			continue
		}
		w.take(in.Msg())
	}
	if err = in.Err(); err == nil {
		err = errors.New("the pod closed the stream")
	}
	if isRefused(err) { // the rejection arrives after the headers
		w.mu.Lock()
		w.greets = false
		w.mu.Unlock()
	}
	return lasted || time.Since(began) > 2*time.Second, err
}

func (w *Worker) introduction() *remotepb.StreamJobsRequest {
	m := &remotepb.StreamJobsRequest{WorkerId: w.currentID(), Topics: w.opts.Kinds, Slots: int32(w.opts.Slots - w.leftovers()), Name: w.opts.Name, Version: w.opts.Version, Running: w.running(), Nudges: true} // #nosec G115 -- the pod rejects more than 1,000
	for _, k := range w.kinds {
		m.Kinds = append(m.Kinds, kind(k))
	}
	return m
}

func kind(k engine.RemoteKind) *remotepb.Kind {
	m := &remotepb.Kind{Name: k.Name, MaxAttempts: int32(k.MaxAttempts), MaxCrashes: int32(k.MaxCrashes)} // #nosec G115 -- small numbers from the program's source
	if k.Timeout != nil {
		m.Timeout = durationpb.New(*k.Timeout)
	}
	if k.InactivityTimeout != nil {
		m.InactivityTimeout = durationpb.New(*k.InactivityTimeout)
	}
	if k.Backoff != nil {
		m.Backoff = &remotepb.Backoff{First: durationpb.New(k.Backoff.Base), Most: durationpb.New(k.Backoff.Cap)}
	}
	return m
}

// restart gives the worker a new ID after the worker has lost all its jobs.
func (w *Worker) restart(why error) {
	w.mu.Lock()
	w.id, w.trusted = uuid.NewString(), time.Time{}
	var lost []*task
	for _, t := range w.tasks {
		lost = append(lost, t)
	}
	cut, id := w.cut, w.id
	w.mu.Unlock()
	w.log.Warn("lease lost: registering again with a new worker id", telemetry.PodID, id, telemetry.Running, len(lost), telemetry.Err, why)
	for _, t := range lost {
		t.lose(job.ErrLeaseLost)
	}
	if cut != nil {
		cut(nil)
	}
}

// isClosed reports whether an error means that the worker's row is closed.
func isClosed(err error) bool {
	return connect.CodeOf(err) == connect.CodeAborted && strings.Contains(err.Error(), "worker_closed")
}

// isSuperseded reports whether an error means that the worker has opened another stream. If the worker has not, another process is using
// the same ID and token, and neither process should hurry to reclaim the stream.
func isSuperseded(err error) bool {
	return connect.CodeOf(err) == connect.CodeAborted && strings.Contains(err.Error(), "superseded")
}

// isRefused reports whether err is a rejection that a retry would not change.
func isRefused(err error) bool {
	switch connect.CodeOf(err) {
	case connect.CodeUnauthenticated, connect.CodePermissionDenied, connect.CodeInvalidArgument, connect.CodeUnimplemented:
		return true
	}
	return false
}

// isDistrusted reports whether one side does not trust the other's certificate. At startup, this error stops the worker, so that the
// operator notices. Later, the worker keeps retrying, because certificates get renewed.
func isDistrusted(err error) bool {
	if wrong, ok := errors.AsType[*net.OpError](err); ok && wrong.Op == "remote error" && !noHTTP2(err) { // an alert from the pod
		return true
	}
	_, ours := errors.AsType[*tls.CertificateVerificationError](err)
	return ours
}

// newBackoff returns the backoff for a worker's connection attempts, reports and other calls.
func newBackoff() *routine.Backoff { return &routine.Backoff{Most: 2 * time.Second} }
