package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/job"
)

// address is where a server is, and who asks.
type address struct{ url, token string }

// serverOf returns the server that a command is to act through: that of its flags, else that of the environment.
func serverOf(c *cobra.Command, config config) (address, bool) {
	to := address{config.Server, config.Token}
	given := c.Root().PersistentFlags() // complete has a --token of its own
	if flag, _ := given.GetString("server"); flag != "" {
		to.url = flag
	}
	if flag, _ := given.GetString("token"); flag != "" {
		to.token = flag
	}
	return to, to.url != ""
}

type serverKey struct{}

// asksServer reports whether the command line of ctx names a server.
func asksServer(ctx context.Context) bool { return ctx.Value(serverKey{}) != nil }

// serverPatience is how long a server may take for the beginning of an answer.
const serverPatience = 30 * time.Second

// server acts through the HTTP API: of a server, or of this process, see [newLocal].
type server struct {
	address
	http     *http.Client
	local    bool
	patience time.Duration // for a whole answer; 0 has no limit
	close    func()
}

func newServer(to address) (*server, error) {
	if err := validServer(to.url); err != nil {
		return nil, usage("--server: %w", err)
	}
	to.url = strings.TrimRight(to.url, "/")
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout = serverPatience
	return &server{address: to, patience: 2 * serverPatience, close: transport.CloseIdleConnections, http: &http.Client{
		Transport: transport,
		// A redirect would turn a POST into a GET, and take the token along.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Close closes all connections.
func (s *server) Close() { s.close() }

// get asks for a path, with a query, and decodes the answer.
func (s *server) get(ctx context.Context, path string, query url.Values, into any) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return s.ask(ctx, http.MethodGet, path, nil, nil, into)
}

// ask sends a request and decodes the answer into a value; nil: it does not matter.
func (s *server) ask(ctx context.Context, method, path string, header http.Header, body, into any) error {
	if s.patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.patience)
		defer cancel()
	}
	response, err := s.send(ctx, method, path, header, body)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if into == nil {
		return nil
	}
	if err := json.NewDecoder(response.Body).Decode(into); err != nil {
		err = fmt.Errorf("%s %s: the answer of %s cannot be read: %w", method, path, s.url, err)
		if method != http.MethodGet {
			return unknown("%w", err)
		}
		return unavailable("%w", err)
	}
	return nil
}

// send sends a request; an answer that is an error becomes one.
func (s *server) send(ctx context.Context, method, path string, header http.Header, body any) (*http.Response, error) {
	var content io.Reader = http.NoBody
	if body != nil {
		var raw bytes.Buffer
		as := json.NewEncoder(&raw)
		as.SetEscapeHTML(false) // arguments arrive as they were typed
		if err := as.Encode(body); err != nil {
			return nil, err
		}
		content = &raw
	}
	var sent atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }})
	request, err := http.NewRequestWithContext(ctx, method, s.url+path, content)
	if err != nil {
		return nil, usage("--server: %w", err)
	}
	for name, values := range header {
		request.Header[name] = values
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if s.token != "" {
		request.Header.Set("Authorization", "Bearer "+s.token)
	}
	if why := job.OriginOf(ctx).Reason; why != "" {
		request.Header.Set("X-Reason", why)
	}
	response, err := s.http.Do(request)
	switch {
	case err != nil && s.local:
		return nil, bare(err)
	case err != nil && sent.Load() && method != http.MethodGet:
		return nil, unknown("%s went away after the request was sent, and may have done it: look, then repeat: %w", s.url, bare(err))
	case err != nil:
		return nil, unavailable("%s does not answer; check that it runs and that --server is right: %w", s.url, bare(err))
	case response.StatusCode >= 300:
		defer response.Body.Close()
		return nil, s.refusal(method, response)
	}
	return response, nil
}

// bare is an error of the client without the method and the address.
func bare(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}
