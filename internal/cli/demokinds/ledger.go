package demokinds

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

// errRefused is returned by a handler when the ledger responds with 409.
var errRefused = job.Permanent(errors.New("refused by the ledger: a newer claim of this job exists"))

// postWithin is the timeout for one report to the ledger.
const postWithin = 10 * time.Second

// line is one report to the ledger. IDs are encoded as strings, as in all of Trapeze's JSON.
type line struct {
	Pod      string `json:"pod"`
	PodID    string `json:"pod_id"`
	Job      int64  `json:"job,string"`
	Kind     string `json:"kind"`
	Subject  string `json:"subject"`
	Lane     string `json:"lane"`
	Pipeline int64  `json:"pipeline,string"`
	Attempt  int    `json:"attempt"`
	Fence    int64  `json:"fence"`
	Event    string `json:"ev"` // start, tick, effect, ctx_done or end
	Cause    string `json:"cause"`
}

// ledger receives the reports of claims. Without a URL, it accepts everything.
type ledger struct {
	url    string
	client *http.Client
}

func newLedger(url string) *ledger {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 128 // keeps a connection for each running job, instead of opening one for every line
	return &ledger{url: url, client: &http.Client{Transport: transport, Timeout: postWithin}}
}

// post sends one line and waits for the response. It returns errRefused on 409. It sends the line even if the handler's context has been
// cancelled. It does not retry, because a line that may have arrived must not be repeated.
func (l *ledger) post(ctx context.Context, one line, event, cause string) error {
	if l.url == "" {
		return nil
	}
	one.Event, one.Cause = event, cause
	body, err := json.Marshal(one)
	if err != nil {
		return fmt.Errorf("report %s to the ledger: %w", event, err)
	}
	request, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodPost, l.url, bytes.NewReader(append(body, '\n')))
	if err != nil {
		return fmt.Errorf("report %s to the ledger: %w", event, err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := l.client.Do(request)
	if err != nil {
		return fmt.Errorf("report %s to the ledger: %w", event, err)
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<16)) // allows the connection to be reused
	switch {
	case response.StatusCode == http.StatusConflict:
		return errRefused
	case response.StatusCode >= 300:
		return fmt.Errorf("report %s to the ledger: it responded %s", event, response.Status)
	}
	return nil
}
