package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/remotepb"
)

// fill sets a report's fields from the handler's return values.
func (t *task) fill(m *remotepb.ReportResultRequest, o *work.Outcome, err error) {
	why := context.Cause(t.ctx)
	switch {
	case err != nil && (errors.Is(why, job.ErrShutdown) || errors.Is(why, job.ErrLeaseLost)):
		m.Outcome = &remotepb.ReportResultRequest_HandedBack{HandedBack: &remotepb.HandedBack{Why: why.Error()}}
	case err != nil:
		m.Outcome = &remotepb.ReportResultRequest_Failure{Failure: failure(err)}
	case o == nil:
		m.Outcome = &remotepb.ReportResultRequest_Done{Done: &remotepb.Done{}}
	case o.Snooze != nil:
		m.Outcome = &remotepb.ReportResultRequest_Snooze{Snooze: &remotepb.Snooze{Wait: durationpb.New(o.Snooze.Wait), Backoff: o.Snooze.Backoff, Why: cut(o.Snooze.Why)}}
	case o.Fan != nil:
		f := &remotepb.FanOut{Parts: int32(o.Fan.Parts), FailFast: o.Fan.FailFast, Result: o.Result, Warning: o.Status == job.Warning} // #nosec G115 -- the pod rejects more than 10,000
		for _, child := range o.Fan.Children {
			f.Children = append(f.Children, submission(child))
		}
		if join := planned(o.Fan.Join); len(join) > 0 {
			f.Join = join[0]
			f.Join.Rest = join[1:]
		}
		f.EndChain, f.Undo = o.EndChain, planned(o.Undo)
		m.Outcome = &remotepb.ReportResultRequest_FanOut{FanOut: f}
	default:
		d := &remotepb.Done{Result: o.Result, Warning: o.Status == job.Warning, EndChain: o.EndChain, Undo: planned(o.Undo)}
		if o.Next != nil {
			d.Then = submission(o.Next)
		}
		m.Outcome = &remotepb.ReportResultRequest_Done{Done: d}
	}
}

// submission converts the next step or a child to its wire form.
func submission(w *work.Submission) *remotepb.Step {
	m := step(work.Step{Step: job.Step{Kind: w.Kind, Args: w.Args, Subject: w.Subject, Key: w.Key, Lane: w.Lane, Priority: w.Priority}, AllowUnregistered: w.AllowUnregistered})
	if w.MaxAttempts != nil {
		m.MaxAttempts = int32(min(*w.MaxAttempts, 1<<30)) // #nosec G115 -- bounded here
	}
	if w.UniqueKey != nil {
		m.UniqueKey, m.UniqueWhile = *w.UniqueKey, *w.UniqueWhile
	}
	if w.Delay > 0 {
		m.Delay = durationpb.New(w.Delay)
	}
	m.Rest = planned(w.Planned)
	return m
}

func planned(steps []work.Step) (list []*remotepb.Step) {
	for _, s := range steps {
		list = append(list, step(s))
	}
	return list
}

func step(s work.Step) *remotepb.Step {
	m := &remotepb.Step{Kind: s.Kind, Args: s.Args, Subject: s.Subject, Key: s.Key, Lane: s.Lane, AllowUnregistered: s.AllowUnregistered, When: string(s.When), Own: s.Own}
	if s.Priority != nil {
		priority := int32(*s.Priority) // #nosec G115 -- −100 to 100
		m.Priority = &priority
	}
	return m
}

func failure(err error) *remotepb.Failure {
	wish := job.WishOf(err)
	class, code := work.ErrorOf(err)
	f := &remotepb.Failure{ErrorClass: string(class), ErrorCode: code, Message: cut(err.Error()), Permanent: wish.Permanent, Retryable: wish.Retry, InvalidArgs: errors.Is(err, job.ErrInvalidArgs)}
	if wish.After != nil {
		f.RetryAfter = durationpb.New(*wish.After)
	}
	return f
}

// cut truncates a message to the length that a pod stores. It also makes the message valid UTF-8, as the wire format requires.
func cut(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), job.MaxErrorBytes)], "�")
}

// complainEvery is the minimum interval between log lines about a worker that no pod accepts. Connection attempts are much more frequent.
const complainEvery = 10 * time.Second

// complaints logs why a worker has no stream: immediately at first, and then at intervals. It must be used by only one goroutine.
type complaints struct {
	last time.Time
}

// complain logs why there is no stream. If was is true, the worker has just lost its stream, and complain logs immediately.
func (w *Worker) complain(ctx context.Context, c *complaints, was bool, server string, err error) {
	if time.Since(c.last) < complainEvery && !was {
		w.log.DebugContext(ctx, "no pod accepts the worker, retrying", telemetry.Server, server, telemetry.Err, err)
		return
	}
	c.last = time.Now()
	text := "no pod accepts the worker, retrying"
	if was {
		text = "the job stream ended, reopening it"
	}
	w.log.WarnContext(ctx, text, telemetry.Server, server, telemetry.Err, err, telemetry.Running, len(w.list()))
}

// withHint adds a hint to a connection error that arose locally, because its text may not help a first-time user. Errors from a pod need no
// hint.
func withHint(server string, err error) error {
	if hint := hint(server, err); hint != "" {
		return fmt.Errorf("%w: %s", err, hint)
	}
	return err
}

func hint(server string, err error) string {
	clear := strings.HasPrefix(server, "http://")
	switch wrong, network := errors.AsType[*net.OpError](err); {
	case connect.IsWireError(err), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return ""
	case errors.Is(err, http.ErrSchemeMismatch):
		return "the server does not speak TLS: set TRAPEZE_TLS_CERT on the pod, or use http:// for a loopback address"
	case noHTTP2(err):
		return "the server speaks TLS but not HTTP/2: configure the proxy to forward gRPC, or bypass it"
	case connect.CodeOf(err) == connect.CodeUnimplemented:
		return "the server is not a pod: want the root address of a pod, without a path"
	case network && wrong.Op == "dial", strings.Contains(err.Error(), "HTTP status "):
		return ""
	case clear:
		return "the server does not speak HTTP/2 in clear text: want a pod without TLS and without a proxy in front"
	}
	return ""
}

// noHTTP2 reports whether the TLS peer does not support HTTP/2. It inspects the error text, because crypto/tls exports no usable alert
// type.
func noHTTP2(err error) bool {
	wrong, ok := errors.AsType[*net.OpError](err)
	return ok && wrong.Op == "remote error" && strings.Contains(wrong.Err.Error(), "no application protocol")
}
