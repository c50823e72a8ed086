package remote_test

import (
	"context"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/matryer/is"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/remote/remotepb"
	"github.com/trapeze-run/trapeze/remote/server"
	"github.com/trapeze-run/trapeze/remote/worker"
	"github.com/trapeze-run/trapeze/runner"
)

func TestRemoteWorkerInvalidRegistration(t *testing.T) {
	t.Parallel()
	p := startPod(t, pgtest.Pool(t), runner.Options{}, server.Options{Authenticate: func(*http.Request) (server.Caller, error) { return server.Caller{Name: "gpu"}, nil }})
	many := make([]string, 501)
	for i := range many {
		many[i] = "kind-" + strconv.Itoa(i)
	}
	huge := strings.Repeat("k", 1<<20)
	for name, m := range map[string]*remotepb.StreamJobsRequest{
		"no slots":                       {Slots: 0},
		"negative slots":                 {Slots: -1},
		"more slots than allowed":        {Slots: 1001},
		"the largest int32 of slots":     {Slots: math.MaxInt32},
		"more kinds than allowed":        {Topics: many},
		"no kinds":                       {Topics: []string{}},
		"a kind without a name":          {Topics: []string{""}},
		"a kind with a NUL":              {Topics: []string{"a\x00b"}},
		"a huge kind":                    {Topics: []string{huge}},
		"a negative policy":              {Kinds: []*remotepb.Kind{{Name: "a", MaxAttempts: -1}}, Topics: []string{"a"}},
		"more running jobs than allowed": {Running: make([]*remotepb.Running, 2001)},
		"an invalid ID":                  {WorkerId: huge},
		"an ID in capitals":              {WorkerId: strings.ToUpper(uuid.NewString())},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			if m.Slots == 0 && name != "no slots" {
				m.Slots = 1
			}
			if m.Topics == nil {
				m.Topics = []string{"a"}
			}
			if m.WorkerId == "" {
				m.WorkerId = uuid.NewString()
			}
			for i := range m.Running {
				m.Running[i] = &remotepb.Running{JobId: int64(i)}
			}
			s, err := bare(p).StreamJobs(t.Context(), connect.NewRequest(m))
			is.NoErr(err)
			is.True(!s.Receive())
			code := connect.CodeOf(s.Err())
			is.True(code == connect.CodeInvalidArgument || code == connect.CodeResourceExhausted)
			is.True(len(s.Err().Error()) < 2000) // short enough for a header
		})
	}
	is := is.New(t)
	_, err := bare(p).Heartbeat(t.Context(), connect.NewRequest(&remotepb.HeartbeatRequest{WorkerId: uuid.NewString(), Running: make([]*remotepb.Running, 2001)}))
	is.Equal(connect.CodeOf(err), connect.CodeResourceExhausted)
}

// A report that stalls halfway does not delay any other call, and the report is accepted when the worker resends it.
func TestReportFrozenMidway(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := startPod(t, pgtest.Pool(t), runner.Options{}, server.Options{Authenticate: func(*http.Request) (server.Caller, error) { return server.Caller{Name: "gpu"}, nil }})
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	body, rest := io.Pipe()
	defer rest.Close()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+remotepb.WorkersReportResultProcedure, body)
	is.NoErr(err)
	request.Header.Set("Content-Type", "application/grpc")
	given := make(chan error, 1)
	go func() {
		answer, err := transport.RoundTrip(request)
		if err == nil {
			_, err = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
		}
		given <- err
	}()
	_, err = rest.Write([]byte("\x00\x00\x0f\xff\xff half of it"))
	is.NoErr(err)
	startWorker(t, worker.Options{Server: p.url}, func(r *runner.Runner) {
		runner.HandleRaw(r, "far", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) { return nil, nil })
	})
	ends(t, p, submit(t, p, raw("far", `{}`)), job.Succeeded)
	select {
	case <-given: // the pod gives up when the request times out
	case <-time.After(20 * time.Second):
		t.Fatal("the pod waits for the rest of the report")
	}
}

// A report that a stopping pod acknowledges has been committed. All other reports are sent to another pod, and no job runs twice.
func TestReportsToStoppingPod(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	first, second := startPod(t, pool, runner.Options{}, server.Options{}), startPod(t, pool, runner.Options{}, server.Options{})
	begun, end := make(chan struct{}, 20), make(chan struct{})
	startWorker(t, worker.Options{Server: first.url + "," + second.url, Slots: 20}, func(r *runner.Runner) {
		runner.HandleRaw(r, "far", func(context.Context, *runner.Job[runner.Raw]) (*runner.Outcome, error) {
			begun <- struct{}{}
			<-end
			return runner.Done("kept"), nil
		})
	})
	var list []int64
	for range 20 {
		list = append(list, submit(t, second, raw("far", `{}`)))
	}
	for range list {
		<-begun
	}
	stopped := make(chan struct{})
	go func() { first.stop(); close(stopped) }()
	close(end)
	for _, id := range list {
		j := ends(t, second, id, job.Succeeded)
		is.Equal(string(j.Result), `"kept"`)
		is.Equal(j.Crashes, 0)
		is.Equal(j.Attempt, 1)
	}
	<-stopped
}

// Any text that a worker sends about a job is either stored or rejected with an error. Either way the job ends, the pod stays healthy and
// the next job runs.
func TestArbitraryRemoteWorkerText(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := pgtest.Pool(t)
	p := startPod(t, pool, runner.Options{HeartbeatInterval: time.Second}, server.Options{Authenticate: func(*http.Request) (server.Caller, error) { return server.Caller{Name: "gpu"}, nil }})
	c, worker := bare(p), uuid.NewString()
	s, err := c.StreamJobs(t.Context(), connect.NewRequest(&remotepb.StreamJobsRequest{WorkerId: worker, Topics: []string{"far"}, Slots: 1}))
	is.NoErr(err)
	defer s.Close()
	far, past := &durationpb.Duration{Seconds: math.MaxInt64}, &durationpb.Duration{Seconds: math.MinInt64}
	priority, text := int32(math.MaxInt32), strings.Repeat("\x00é\n", 10_000)
	then := func(m *remotepb.Step) *remotepb.ReportResultRequest {
		return &remotepb.ReportResultRequest{Outcome: &remotepb.ReportResultRequest_Done{Done: &remotepb.Done{Then: m}}}
	}
	fan := func(m *remotepb.FanOut) *remotepb.ReportResultRequest {
		return &remotepb.ReportResultRequest{Outcome: &remotepb.ReportResultRequest_FanOut{FanOut: m}}
	}
	for name, said := range map[string]struct {
		report *remotepb.ReportResultRequest
		state  job.State
	}{
		"a result that is not JSON":          {&remotepb.ReportResultRequest{Outcome: &remotepb.ReportResultRequest_Done{Done: &remotepb.Done{Result: []byte("nul")}}}, job.Failed},
		"a result with invalid UTF-8":        {&remotepb.ReportResultRequest{Outcome: &remotepb.ReportResultRequest_Done{Done: &remotepb.Done{Result: []byte("\"\xff\"")}}}, job.Failed},
		"a result with a NUL":                {&remotepb.ReportResultRequest{Outcome: &remotepb.ReportResultRequest_Done{Done: &remotepb.Done{Result: []byte(`"\u0000"`)}}}, job.Failed},
		"a result of 2 MiB":                  {&remotepb.ReportResultRequest{Outcome: &remotepb.ReportResultRequest_Done{Done: &remotepb.Done{Result: []byte(`"` + strings.Repeat("x", 2<<20) + `"`)}}}, job.Failed},
		"a step without a kind":              {then(&remotepb.Step{}), job.Failed},
		"a step with a huge kind":            {then(&remotepb.Step{Kind: text, AllowUnregistered: true}), job.Failed},
		"a step in an unknown lane":          {then(&remotepb.Step{Kind: "far", Lane: "nowhere"}), job.Failed},
		"a step with a NUL":                  {then(&remotepb.Step{Kind: "far", Subject: &text}), job.Failed},
		"a step with an invalid priority":    {then(&remotepb.Step{Kind: "far", Priority: &priority}), job.Failed},
		"a step with a negative delay":       {then(&remotepb.Step{Kind: "far", Delay: past}), job.Failed},
		"a step with a huge delay":           {then(&remotepb.Step{Kind: "far", Delay: far, MaxAttempts: math.MaxInt32}), job.Succeeded},
		"a step with negative attempts":      {then(&remotepb.Step{Kind: "far", MaxAttempts: math.MinInt32}), job.Failed},
		"a step with a unique key":           {then(&remotepb.Step{Kind: "far", UniqueKey: "k", UniqueWhile: "always"}), job.Failed},
		"more parts than allowed":            {fan(&remotepb.FanOut{Parts: math.MaxInt32}), job.Failed},
		"a child without a kind":             {fan(&remotepb.FanOut{Children: []*remotepb.Step{{Kind: "far"}, {}}}), job.Failed},
		"a child with an invalid key period": {fan(&remotepb.FanOut{Children: []*remotepb.Step{{Kind: "far", UniqueKey: text, UniqueWhile: "never"}}}), job.Failed},
		"an error without a message":         {&remotepb.ReportResultRequest{Outcome: &remotepb.ReportResultRequest_Failure{Failure: &remotepb.Failure{Permanent: true}}}, job.Failed},
		"an error with unstorable text":      {&remotepb.ReportResultRequest{Outcome: &remotepb.ReportResultRequest_Failure{Failure: &remotepb.Failure{Message: text, InvalidArgs: true, RetryAfter: far, Permanent: true}}}, job.Failed},
		"a snooze with a huge delay":         {&remotepb.ReportResultRequest{Outcome: &remotepb.ReportResultRequest_Snooze{Snooze: &remotepb.Snooze{Wait: far, Why: text}}}, job.Pending},
		"a retry with a huge delay":          {&remotepb.ReportResultRequest{Outcome: &remotepb.ReportResultRequest_Failure{Failure: &remotepb.Failure{Message: text, Retryable: true, RetryAfter: far}}}, job.Pending},
	} {
		id := submit(t, p, raw("far", `{}`), runner.MaxAttempts(2))
		is.True(s.Receive())
		a := s.Msg()
		if a.GetJobId() != id {
			t.Fatalf("%s: job %d was sent, want %d", name, a.GetJobId(), id)
		}
		about := &remotepb.Running{JobId: id, Fence: a.GetFence(), Token: a.GetToken(), Progress: &remotepb.Progress{Done: new(int64), Total: proto.Int64(math.MinInt64), Message: &text}}
		_, err := c.Heartbeat(t.Context(), connect.NewRequest(&remotepb.HeartbeatRequest{WorkerId: worker, Running: []*remotepb.Running{about, about}}))
		is.NoErr(err)
		for _, e := range []*remotepb.Event{{Name: text, Level: "warn", Message: text}, {Name: "x", Fields: []byte(`{"a":1}`)}} {
			_, err := c.Note(t.Context(), connect.NewRequest(&remotepb.NoteRequest{WorkerId: worker, JobId: id, Fence: a.GetFence(), Token: a.GetToken(), Note: &remotepb.NoteRequest_Event{Event: e}}))
			is.NoErr(err)
		}
		for _, e := range []*remotepb.Event{{}, {Name: "job.succeeded"}, {Name: "x", Level: "loud"}} {
			_, err := c.Note(t.Context(), connect.NewRequest(&remotepb.NoteRequest{WorkerId: worker, JobId: id, Fence: a.GetFence(), Token: a.GetToken(), Note: &remotepb.NoteRequest_Event{Event: e}}))
			is.Equal(connect.CodeOf(err), connect.CodeInvalidArgument)
		}
		_, err = c.Note(t.Context(), connect.NewRequest(&remotepb.NoteRequest{WorkerId: worker, JobId: id, Fence: a.GetFence(), Token: a.GetToken(), Note: &remotepb.NoteRequest_Event{Event: &remotepb.Event{Name: "x", Fields: []byte("nul")}}}))
		is.Equal(connect.CodeOf(err), connect.CodeInvalidArgument)
		_, err = c.Note(t.Context(), connect.NewRequest(&remotepb.NoteRequest{WorkerId: worker, JobId: id, Fence: a.GetFence(), Token: a.GetToken(), Note: &remotepb.NoteRequest_Checkpoint{Checkpoint: []byte(`"\u0000"`)}}))
		is.Equal(connect.CodeOf(err), connect.CodeInvalidArgument)
		_, err = c.Read(t.Context(), connect.NewRequest(&remotepb.ReadRequest{WorkerId: worker, JobId: id, Fence: a.GetFence(), Token: a.GetToken(), What: &remotepb.ReadRequest_Branches_{Branches: &remotepb.ReadRequest_Branches{After: math.MinInt32}}}))
		is.True(err == nil || connect.CodeOf(err) == connect.CodeNotFound)
		m := said.report
		m.WorkerId, m.JobId, m.Fence, m.Token = worker, id, a.GetFence(), a.GetToken()
		if _, err := c.ReportResult(t.Context(), connect.NewRequest(m)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		j, err := p.GetJob(t.Context(), id)
		is.NoErr(err)
		if j.State != said.state {
			t.Errorf("%s: the job is %s, want %s: %s", name, j.State, said.state, deref(j.Error))
		}
	}
	ok, _ := p.Ready()
	is.True(ok)
}
