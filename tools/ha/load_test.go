//go:build ha && linux

package ha

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"
)

const (
	clients       = 4
	submitEvery   = 100 * time.Millisecond // pause of a client after an accepted submission
	submitAgain   = 50 * time.Millisecond  // pause before a client retries a submission with the same key
	clientTimeout = 2 * time.Second
	rowsOfAJob    = 5 // number of rows that demo.tx writes in the commit that ends the job
)

// accepted is a submission that a pod has confirmed.
type accepted struct {
	key  string
	id   int64
	kind string // the kind of its first job
	jobs int    // the number of jobs in its pipeline
	at   time.Time
}

// line is a report from a handler to the ledger.
type line struct {
	at    time.Time
	Pod   string `json:"pod"`
	Job   int64  `json:"job,string"`
	Kind  string `json:"kind"`
	Event string `json:"ev"`
}

// load continuously submits jobs through all pods, and records the responses and the handlers' reports.
type load struct {
	pods   []*pod
	ledger *httptest.Server
	stop   context.CancelFunc
	done   sync.WaitGroup

	mu       sync.Mutex
	keys     map[string]bool // keys of all submissions sent
	accepted []accepted
	lines    []line
	errors   map[string]int // responses other than 2xx, with their counts
}

// newLoad starts the ledger. Call begin to start the clients.
func newLoad(t *testing.T) *load {
	l := &load{keys: map[string]bool{}, errors: map[string]int{}}
	l.ledger = httptest.NewServer(http.HandlerFunc(l.hear))
	t.Cleanup(l.ledger.Close)
	return l
}

// hear receives one report from a handler.
func (l *load) hear(_ http.ResponseWriter, r *http.Request) {
	one := line{at: time.Now()}
	if json.NewDecoder(io.LimitReader(r.Body, 1<<16)).Decode(&one) != nil {
		return // the sender died during the request
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, one)
}

// begin starts the clients, and end stops them.
func (l *load) begin(t *testing.T, all []*pod) {
	l.pods = all
	ctx, cancel := context.WithCancel(t.Context())
	l.stop = cancel
	for n := range clients {
		l.done.Go(func() { l.client(ctx, n) })
	}
	t.Cleanup(l.end)
}

func (l *load) end() {
	l.stop()
	l.done.Wait()
}

// client submits jobs one after another, each with an idempotency key. It tries one pod after another until one accepts the job.
func (l *load) client(ctx context.Context, n int) {
	web := &http.Client{Timeout: clientTimeout}
	for i := 0; ctx.Err() == nil; i++ {
		body, one := submission(n + i*clients)
		one.key = fmt.Sprintf("client%d/%d", n, i)
		l.submit(ctx, web, one, body, func(try int) *pod { return l.pods[(n+i+try)%len(l.pods)] })
		wait(ctx, submitEvery)
	}
}

// submit sends a submission repeatedly until a pod accepts it. It calls to for each attempt to choose the pod.
func (l *load) submit(ctx context.Context, web *http.Client, one accepted, body []byte, to func(try int) *pod) {
	l.mu.Lock()
	l.keys[one.key] = true
	l.mu.Unlock()
	for try := 0; ctx.Err() == nil; try++ {
		url, _ := to(try).url.Load().(string)
		id, err := submit(ctx, web, url, one.key, body)
		l.mu.Lock()
		if err != nil {
			l.errors[err.Error()]++
		} else {
			one.id, one.at = id, time.Now()
			l.accepted = append(l.accepted, one)
		}
		l.mu.Unlock()
		if err == nil {
			return
		}
		wait(ctx, submitAgain)
	}
}

// fanOut submits a job with n children to each pod, so that each pod must reserve new IDs. It waits until all these jobs have been
// accepted.
func (l *load) fanOut(ctx context.Context, name string, n int) {
	ctx, cancel := context.WithTimeout(ctx, stuckAfter)
	defer cancel()
	var sent sync.WaitGroup
	for _, p := range l.pods {
		sent.Go(func() {
			body, _ := json.Marshal(map[string]any{"kind": "demo.fanout", "args": map[string]any{"n": n}})
			one := accepted{key: name + "/" + p.name, kind: "demo.fanout", jobs: n + 1}
			l.submit(ctx, &http.Client{Timeout: clientTimeout}, one, body, func(int) *pod { return p })
		})
	}
	sent.Wait()
}

// submission returns the nth submission: a job that does nothing, a chain, a job that writes rows in the commit that ends it, or a job that
// takes several seconds.
func submission(n int) (body []byte, one accepted) {
	object := map[string]any{"kind": "demo.noop"}
	one.jobs = 1
	switch {
	case n%25 == 7:
		object = map[string]any{"kind": "demo.sleep", "args": map[string]any{"ms": 4000 + n%5*1500, "ticks": 4}}
	case n%5 == 1:
		one.jobs = 3
		object = map[string]any{"kind": "demo.tx", "args": map[string]any{"rows": rowsOfAJob}, "chain": []any{
			map[string]any{"kind": "demo.sleep", "args": map[string]any{"ms": 30}},
			map[string]any{"kind": "demo.effect", "args": map[string]any{"n": 1}}}}
	case n%5 == 2:
		object = map[string]any{"kind": "demo.tx", "args": map[string]any{"rows": rowsOfAJob}}
	case n%5 == 3:
		object = map[string]any{"kind": "demo.effect", "args": map[string]any{"n": 1}}
	}
	one.kind = object["kind"].(string)
	body, _ = json.Marshal(object)
	return body, one
}

func submit(ctx context.Context, web *http.Client, url, key string, body []byte) (int64, error) {
	if url == "" {
		return 0, fmt.Errorf("the pod has not started")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/jobs", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", key)
	response, err := web.Do(request)
	if err != nil {
		return 0, fmt.Errorf("no answer")
	}
	defer response.Body.Close()
	var answer struct{ ID, Code string }
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return 0, fmt.Errorf("no answer")
	}
	if response.StatusCode >= 300 {
		return 0, fmt.Errorf("%d %s", response.StatusCode, answer.Code)
	}
	return strconv.ParseInt(answer.ID, 10, 64)
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// acceptedSince returns when the first submission after the given time was accepted, or the zero time if none was.
func (l *load) acceptedSince(from time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := len(l.accepted) - 1; i >= 0; i-- {
		if l.accepted[i].at.Before(from) {
			if i+1 < len(l.accepted) {
				return l.accepted[i+1].at
			}
			return time.Time{}
		}
	}
	return time.Time{}
}

// startedSince returns when each pod first started a handler after the given time. Pods that have not started one are omitted.
func (l *load) startedSince(from time.Time) map[string]time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := map[string]time.Time{}
	for i := len(l.lines) - 1; i >= 0 && !l.lines[i].at.Before(from); i-- {
		if l.lines[i].Event == "start" {
			first[l.lines[i].Pod] = l.lines[i].at
		}
	}
	return first
}

// longestGap returns the longest interval between consecutive moments after from. The intervals before the first moment and after the last
// one count, too.
func longestGap(moments []time.Time, from time.Time) (longest time.Duration) {
	last := from
	for _, at := range moments {
		if at.After(from) {
			longest, last = max(longest, at.Sub(last)), at
		}
	}
	return max(longest, time.Since(last))
}

// gaps returns the longest periods since the given time in which no submission was accepted and in which no handler started.
func (l *load) gaps(from time.Time) (submissions, handlers time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var accepted, started []time.Time
	for _, one := range l.accepted {
		accepted = append(accepted, one.at)
	}
	for _, one := range l.lines {
		if one.Event == "start" {
			started = append(started, one.at)
		}
	}
	return longestGap(accepted, from), longestGap(started, from)
}

// cancelled counts the handlers whose context was cancelled after the given time.
func (l *load) cancelled(from time.Time) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.lines {
		if one.Event == "ctx_done" && one.at.After(from) {
			n++
		}
	}
	return n
}
