package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/internal/host"
	"github.com/trapeze-run/trapeze/remote/remotepb"
)

// An empty step takes two bytes on the wire and two hundred in memory, so a 16 MiB message could use gigabytes of memory if only its size
// were limited. The parts of a message are therefore counted before it is decoded.
const (
	// maxParts is the maximum number of nested messages and list elements in a message: ten steps for each of 10,000 branches.
	maxParts = 100_000
	// maxNested is the maximum nesting depth of a message. The Go worker sends messages nested three deep.
	maxNested = 100
)

var (
	errManyParts  = fmt.Errorf("more than %d parts in one message", maxParts)
	errDeepNested = fmt.Errorf("nested deeper than %d", maxNested)
)

// binary encodes messages as gRPC does. It refuses to decode a message that would take up far more memory than its encoded form.
type binary struct{}

func (binary) Name() string { return "proto" }

func (binary) Marshal(m any) ([]byte, error) { return binary{}.MarshalAppend(nil, m) }

func (binary) MarshalAppend(to []byte, m any) ([]byte, error) {
	if m, ok := m.(proto.Message); ok {
		return proto.MarshalOptions{}.MarshalAppend(to, m)
	}
	return nil, fmt.Errorf("%T is not a protobuf message", m)
}

func (binary) Unmarshal(raw []byte, m any) error {
	to, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is not a protobuf message", m)
	}
	left := maxParts
	if err := weigh(raw, to.ProtoReflect().Descriptor(), maxNested, &left); err != nil {
		return err
	}
	return proto.Unmarshal(raw, to)
}

// weigh counts the parts of a message. It stops at malformed data, because the decoder then returns an error.
func weigh(raw []byte, of protoreflect.MessageDescriptor, depth int, left *int) error {
	if depth == 0 {
		return errDeepNested
	}
	for len(raw) > 0 {
		number, kind, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return nil
		}
		raw = raw[n:]
		if n = protowire.ConsumeFieldValue(number, kind, raw); n < 0 {
			return nil
		}
		if field := of.Fields().ByNumber(number); field != nil && (field.IsList() || field.Message() != nil) {
			if *left--; *left < 0 {
				return errManyParts
			}
			if inner, size := protowire.ConsumeBytes(raw); size >= 0 && kind == protowire.BytesType && field.Message() != nil {
				if err := weigh(inner, field.Message(), depth-1, left); err != nil {
					return err
				}
			}
		}
		raw = raw[n:]
	}
	return nil
}

// text encodes messages as JSON, for use with curl. It applies the same limits as binary, but counts every opening brace as a part,
// including braces inside strings.
type text struct{ name string }

func (t text) Name() string { return t.name }

func (text) Marshal(m any) ([]byte, error) {
	if m, ok := m.(proto.Message); ok {
		return protojson.Marshal(m)
	}
	return nil, fmt.Errorf("%T is not a protobuf message", m)
}

func (text) Unmarshal(raw []byte, m any) error {
	to, ok := m.(proto.Message)
	switch {
	case !ok:
		return fmt.Errorf("%T is not a protobuf message", m)
	case len(raw) == 0:
		return errors.New("not a JSON object")
	case bytes.Count(raw, []byte("{")) > maxParts:
		return errManyParts
	}
	return protojson.UnmarshalOptions{DiscardUnknown: true, RecursionLimit: maxNested}.Unmarshal(raw, to)
}

// callError converts err to the error that a call returns. If workers react to an error, its text begins with a fixed word. The database
// driver's error text may contain host and user names, so it appears only in the log.
func callError(ctx context.Context, err error) error {
	says := func(code connect.Code, word string) error {
		return connect.NewError(code, errors.New(word+": "+truncate(err.Error())))
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(ctx.Err(), context.Canceled): // the worker is gone or has already learned the outcome; nobody reads the reply
		return connect.NewError(connect.CodeCanceled, errors.New("the client cancelled the call"))
	case errors.Is(err, host.ErrClosed):
		return says(connect.CodeAborted, "worker_closed")
	case errors.Is(err, host.ErrSuperseded):
		return says(connect.CodeAborted, "superseded")
	case errors.Is(err, host.ErrWrongToken):
		return says(connect.CodePermissionDenied, "wrong_token")
	case errors.Is(err, job.ErrLeaseLost):
		stale := connect.NewError(connect.CodeFailedPrecondition, errors.New("stale_fence: "+truncate(err.Error())))
		if detail, err := connect.NewErrorDetail(&remotepb.ReportResultResponse{Status: remotepb.ReportResultResponse_STATUS_STALE}); err == nil {
			stale.AddDetail(detail)
		}
		return stale
	case errors.Is(err, job.ErrTooLarge):
		return says(connect.CodeResourceExhausted, "too_large")
	case errors.Is(err, job.ErrInvalid), errors.Is(err, job.ErrInvalidArgs):
		return says(connect.CodeInvalidArgument, "invalid")
	case errors.Is(err, job.ErrNotFound):
		return says(connect.CodeNotFound, "not_found")
	case errors.Is(err, job.ErrCancelled):
		return says(connect.CodeCanceled, "cancelled")
	case errors.Is(err, job.ErrOutcomeUnknown):
		slog.WarnContext(ctx, "outcome of a remote worker's call is unknown", telemetry.Err, err)
		return connect.NewError(connect.CodeUnavailable, errors.New("outcome_unknown: the database connection was lost before the reply"))
	case errors.Is(err, job.ErrShutdown):
		return says(connect.CodeUnavailable, "unavailable")
	case errors.Is(err, context.DeadlineExceeded):
		return connect.NewError(connect.CodeDeadlineExceeded, errors.New("timed out: try again"))
	}
	slog.WarnContext(ctx, "remote worker's call failed", telemetry.Err, err)
	return connect.NewError(connect.CodeUnavailable, errors.New("unavailable: temporary failure: repeat the call here or on another pod"))
}

// maxErrorBytes is the maximum length of an error text in bytes. An error text can quote the worker's input and is sent in a header, and
// clients accept only about eight kilobytes of headers.
const maxErrorBytes = 1000

// truncate cuts text to maxErrorBytes bytes, plus an ellipsis, so that it fits in a header.
func truncate(text string) string {
	if len(text) > maxErrorBytes {
		return strings.ToValidUTF8(text[:maxErrorBytes], "") + "…"
	}
	return text
}
