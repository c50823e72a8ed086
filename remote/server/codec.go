package server

import (
	"bytes"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
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
