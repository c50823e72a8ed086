package server

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/internal/host"
	"github.com/trapeze-run/trapeze/remote/remotepb"
)

// wire returns a message in its wire encoding.
func wire(m proto.Message) []byte {
	raw, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return raw
}

// nested returns an encoded report whose steps are nested to the given depth. It builds the message backwards in one pass.
func nested(deep int) []byte {
	var raw []byte // in reverse order
	put := func(field protowire.Number) {
		size := protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.BytesType), uint64(len(raw)))
		slices.Reverse(size)
		raw = append(raw, size...)
	}
	for range deep {
		put(11)
	}
	put(3)
	put(5)
	slices.Reverse(raw)
	return raw
}

// broad returns an encoded report with the given number of empty children.
func broad(children int) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, 6, protowire.BytesType), bytes.Repeat([]byte{1<<3 | 2, 0}, children))
}

func someText(s string) *string { return &s }

// reports returns encoded reports, valid and invalid.
func reports() [][]byte {
	priority := int32(math.MinInt32)
	far := &durationpb.Duration{Seconds: math.MaxInt64, Nanos: math.MaxInt32}
	past := &durationpb.Duration{Seconds: math.MinInt64, Nanos: math.MinInt32}
	step := &remotepb.Step{Kind: "far", Args: []byte(`{"n":1}`), Subject: someText("s"), Lane: "gpu", Delay: durationpb.New(time.Second), MaxAttempts: 3, AllowUnregistered: true,
		Rest: []*remotepb.Step{{Kind: "next", Priority: &priority}}}
	list := [][]byte{{}, {0xff}, nested(9), nested(101), broad(3)}
	for _, m := range []*remotepb.ReportResultRequest{
		{WorkerId: "w", JobId: 1, Fence: 2, Token: []byte{3}},
		{Outcome: &remotepb.ReportResultRequest_Done{Done: &remotepb.Done{Result: []byte(`{"a":[1,"\u0000"]}`), Warning: true, Then: step}}},
		{Outcome: &remotepb.ReportResultRequest_Done{Done: &remotepb.Done{Result: []byte("\xff\x00 no JSON"), Then: &remotepb.Step{Kind: "a\x00\n", Args: []byte("nul"), Subject: someText("\x00"), Delay: past, MaxAttempts: math.MinInt32}}}},
		{Outcome: &remotepb.ReportResultRequest_FanOut{FanOut: &remotepb.FanOut{Parts: math.MaxInt32, Children: []*remotepb.Step{step, {}}, Join: step, FailFast: true}}},
		{Outcome: &remotepb.ReportResultRequest_FanOut{FanOut: &remotepb.FanOut{Parts: -1, Children: []*remotepb.Step{{Kind: "k", UniqueKey: "u", UniqueWhile: "sometimes", Delay: far}}}}},
		{Outcome: &remotepb.ReportResultRequest_FanOut{FanOut: &remotepb.FanOut{Parts: 1, Undo: []*remotepb.Step{{Kind: "k", Args: []byte("nul")}}}}},
		{Outcome: &remotepb.ReportResultRequest_Snooze{Snooze: &remotepb.Snooze{Wait: far, Why: "\x00"}}},
		{Outcome: &remotepb.ReportResultRequest_Snooze{Snooze: &remotepb.Snooze{Wait: past}}},
		{Outcome: &remotepb.ReportResultRequest_Failure{Failure: &remotepb.Failure{Message: strings.Repeat("é", 100), Permanent: true, Retryable: true, InvalidArgs: true, RetryAfter: past}}},
		{Outcome: &remotepb.ReportResultRequest_HandedBack{HandedBack: &remotepb.HandedBack{Why: strings.Repeat("\x00", 300)}}},
	} {
		list = append(list, wire(m))
	}
	return list
}

// takeIn decodes a report from its wire encoding.
func takeIn(raw []byte) (report host.Report, err error) {
	var m remotepb.ReportResultRequest
	if err := (binary{}).Unmarshal(raw, &m); err != nil {
		return report, err
	}
	return reportOf(&m)
}

// submissions returns the jobs that follow an outcome.
func submissions(o *work.Outcome) (list []*work.Submission) {
	switch {
	case o == nil:
	case o.Fan != nil:
		list = append(o.Fan.Children, &work.Submission{Kind: "join", Args: []byte("{}"), Planned: o.Fan.Join})
	case o.Next != nil:
		list = append(list, o.Next)
	}
	return list
}

// A worker's report is either decoded or rejected. No input makes a pod panic, and the plans of every decoded report can be stored.
func FuzzWorkerReport(f *testing.F) {
	for _, raw := range reports() {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		report, err := takeIn(raw)
		if err != nil {
			if code := connect.CodeOf(err); code != connect.CodeInvalidArgument && code != connect.CodeUnknown { // a codec error; connect assigns its code
				t.Errorf("%x: %v", raw, err)
			}
			return
		}
		if (report.Outcome != nil) == (report.Err != nil) && !report.HandedBack {
			t.Errorf("%x is neither an outcome nor an error, or it is both", raw)
		}
		if report.Err != nil && (report.Err.Error() == "" || job.WishOf(report.Err).After != nil && *job.WishOf(report.Err).After < 0) {
			t.Errorf("%x is the error %q with the wish %+v", raw, report.Err, job.WishOf(report.Err))
		}
		for _, w := range submissions(report.Outcome) {
			_ = w.Validate() // the engine rejects invalid submissions later
			if args, err := work.EncodeRawArgs(w.Kind, w.Args); err != nil || !bytes.Equal(args, w.Args) {
				t.Errorf("%x has args %q, which become %q: %v", raw, w.Args, args, err)
			}
			if err := w.EncodePlan(); err != nil {
				t.Errorf("%x has a plan that cannot be stored: %v", raw, err)
			}
		}
	})
}

// A worker's registration is either accepted or rejected. The worker is never sent jobs of kinds that its principal may not run.
func FuzzWorkerKinds(f *testing.F) {
	for _, m := range []*remotepb.StreamJobsRequest{
		{}, {Topics: []string{"gpu.a", "gpu.a", ""}, Slots: 1}, {Topics: []string{"gpu.a", "secret"}}, {Topics: []string{"\x00\n"}, Slots: math.MinInt32},
		{Kinds: []*remotepb.Kind{{Name: "gpu.a", Timeout: &durationpb.Duration{Seconds: math.MaxInt64}, MaxAttempts: -1, MaxCrashes: math.MaxInt32, InactivityTimeout: &durationpb.Duration{Seconds: -1}, Backoff: &remotepb.Backoff{First: durationpb.New(-1)}}, {}}},
		{Kinds: []*remotepb.Kind{{Name: "secret"}}, Topics: []string{"gpu.b"}, Running: []*remotepb.Running{{JobId: -1, Token: []byte{0}}}},
	} {
		f.Add(wire(m))
	}
	bound := Caller{Name: "gpu", Kind: func(name string) bool { return strings.HasPrefix(name, "gpu.") }}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var m remotepb.StreamJobsRequest
		if (binary{}).Unmarshal(raw, &m) != nil {
			return
		}
		kinds, err := kindsOf(&m, bound)
		if err != nil {
			if connect.CodeOf(err) != connect.CodePermissionDenied || len(err.Error()) > 3*maxErrorBytes {
				t.Errorf("%x: %v", raw, err)
			}
			return
		}
		seen := map[string]bool{}
		for _, k := range kinds {
			if !bound.Kind(k.Name) || seen[k.Name] {
				t.Errorf("%x: %q among %v", raw, k.Name, kinds)
			}
			seen[k.Name] = true
		}
	})
}

func TestReportSizeAndTimeLimits(t *testing.T) {
	for name, c := range map[string]struct {
		raw  []byte
		want error
	}{
		"as many branches as allowed": {broad(10_000), nil},
		"too many":                    {broad(8 << 20), errManyParts},
		"as deep as allowed":          {nested(maxNested - 3), nil},
		"too deep":                    {nested(maxNested), errDeepNested},
		"as deep as fits in 16 MiB":   {nested(3 << 20), errDeepNested},
	} {
		began := time.Now()
		_, err := takeIn(c.raw)
		if !errors.Is(err, c.want) || time.Since(began) > 20*time.Second {
			t.Errorf("%s: %v after %s, want %v", name, err, time.Since(began), c.want)
		}
	}
	many := &remotepb.ReportResultRequest{}
	if err := (text{}).Unmarshal([]byte(`{"fanOut":{"children":[{}`+strings.Repeat(`,{}`, maxParts)+`]}}`), many); !errors.Is(err, errManyParts) {
		t.Errorf("too many, as JSON: %v", err)
	}
	if err := (text{}).Unmarshal([]byte(`{"done":{"then":`+strings.Repeat(`{"rest":[`, 10_000)+strings.Repeat(`]}`, 10_000)+`}}`), many); err == nil {
		t.Error("JSON that is nested too deeply was accepted")
	}
}
