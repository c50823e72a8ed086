package torture

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

const (
	clientPatience = 3 * time.Second // timeout for a response
	knownAtMost    = 400             // number of recent jobs that commands can target
	unsent         = "unsent"        // error code of a call whose request was never sent
)

// Crowd is the set of numbered clients that send HTTP requests to the pods and record the responses. Client 0 stands for the nemesis, the
// operators and the tests of the idle fleet. The methods are safe for concurrent use.
type Crowd struct {
	w     *World
	http  *http.Client
	calls atomic.Int64

	mu    sync.Mutex
	known []int64 // the most recent successfully submitted jobs
}

// NewCrowd returns a crowd for a world.
func NewCrowd(w *World) *Crowd {
	return &Crowd{w: w, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16, IdleConnTimeout: 10 * time.Second}}}
}

// submission is the body of POST /jobs together with its idempotency key.
type submission struct {
	Kind        string          `json:"kind"`
	Args        json.RawMessage `json:"args,omitempty"`
	Subject     string          `json:"subject,omitempty"`
	JobKey      string          `json:"key,omitempty"` // whose job it is
	Lane        string          `json:"lane,omitempty"`
	Priority    *int            `json:"priority,omitempty"`
	Delay       string          `json:"delay,omitempty"`
	Ordered     bool            `json:"ordered,omitempty"`
	MaxAttempts int             `json:"max_attempts,omitempty"`
	UniqueKey   string          `json:"unique_key,omitempty"`
	UniqueWhile string          `json:"unique_while,omitempty"`
	Chain       []job.Step      `json:"chain,omitempty"`

	key string // Idempotency-Key, or empty
}

func (c *Crowd) submit(ctx context.Context, client int, pod *Pod, s submission) history.Call {
	call := c.begin(client, "submit", pod)
	call.Key, call.Unique, call.Kind, call.Subject = s.key, s.UniqueKey, s.Kind, s.Subject
	call.Lane, call.Priority, call.Args, call.Chain, call.JobKey = s.Lane, s.Priority, s.Args, s.Chain, s.JobKey
	call.Ordered = s.Ordered
	call.Delay, _ = time.ParseDuration(s.Delay)
	body, err := json.Marshal(s)
	if err != nil {
		c.w.fail(fmt.Errorf("submission %+v: %w", s, err))
		return call
	}
	c.send(ctx, &call, pod, http.MethodPost, "/jobs", body)
	if call.Outcome == history.OK {
		c.learn(call.Job)
	}
	return call
}

// end cancels or stops a job; verb is "cancel" or "stop".
func (c *Crowd) end(ctx context.Context, client int, pod *Pod, verb string, id int64) history.Call {
	call := c.begin(client, verb, pod)
	call.Job = id
	path := fmt.Sprintf("/jobs/%d/cancel", id)
	if verb == "stop" {
		path = fmt.Sprintf("/admin/workers/jobs/%d/force-cancel", id)
	}
	c.send(ctx, &call, pod, http.MethodPost, path, nil)
	return call
}

func (c *Crowd) begin(client int, verb string, pod *Pod) history.Call {
	call := history.Call{N: int(c.calls.Add(1)), Client: client, Verb: verb, Began: time.Now()}
	if pod != nil {
		call.Pod = pod.Name()
	}
	return call
}

// send makes a call, waits for the response, and records both.
func (c *Crowd) send(ctx context.Context, call *history.Call, pod *Pod, method, path string, body []byte) {
	ctx, cancel := context.WithTimeout(ctx, clientPatience)
	defer cancel()
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	call.Outcome = history.Unknown
	defer func() {
		call.Ended = time.Now()
		c.w.Called(*call)
	}()
	url := pod.URL()
	request, err := http.NewRequestWithContext(ctx, method, url+path, bytes.NewReader(body))
	if err != nil || url == "" {
		call.Outcome, call.Code = history.Refused, unsent
		return
	}
	request.GetBody = nil // prevents the transport from sending the request a second time
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+c.w.tokens.of[crowdName])
	if call.Key != "" {
		request.Header.Set("Idempotency-Key", call.Key)
	}
	response, err := c.http.Do(request)
	if err != nil {
		if !connected.Load() {
			call.Outcome = history.Refused
			call.Code = unsent
		}
		return
	}
	defer response.Body.Close()
	var a answer
	if err := json.NewDecoder(response.Body).Decode(&a); err != nil {
		return // a truncated response has no usable content
	}
	call.Status, call.Code, call.State = response.StatusCode, a.Code, a.State
	call.Outcome = outcomeOf(response.StatusCode, a.Code)
	if id, err := strconv.ParseInt(a.ID, 10, 64); err == nil {
		call.Job = id
	}
}

// answer is the body of a pod's response.
type answer struct {
	ID    string `json:"id"`
	State string `json:"state"`
	Code  string `json:"code"` // error code
}

// outcomeOf derives a call's outcome from its response. After a server error, the outcome is unknown unless the error code guarantees that
// nothing was done.
func outcomeOf(status int, code string) string {
	switch {
	case status < 300:
		return history.OK
	case status < 500, code == "unavailable":
		return history.Refused
	}
	return history.Unknown
}

// learn remembers a job, so that commands can target it.
func (c *Crowd) learn(id int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known = append(c.known, id); len(c.known) > knownAtMost {
		c.known = c.known[1:]
	}
}

// pick returns a known job. at ranges from 0 to 1; values near 1 select the most recent jobs.
func (c *Crowd) pick(at float64) (int64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.known) == 0 {
		return 0, false
	}
	return c.known[int(at*float64(len(c.known)))], true
}

// pod returns the first pod with a running HTTP server, starting the search with the nth pod.
func (c *Crowd) pod(n int) (*Pod, bool) {
	pods := c.w.Pods()
	for i := range pods {
		if p := pods[(n+i)%len(pods)]; p.URL() != "" {
			return p, true
		}
	}
	return nil, false
}
