package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/text"
)

// patience limits how long a server may take to begin a response.
const patience = 30 * time.Second

// Client calls the API.
type Client struct {
	url, token, reason string

	http  *http.Client
	local bool // whether the API is in this process
	close func()
}

// For returns the client for a command. The client uses the server given by --server or TRAPEZE_SERVER, or else the database. The caller
// must close it.
func For(c *cobra.Command) (*Client, error) {
	config, err := Load()
	if err != nil {
		return nil, err
	}
	to := &Client{url: ServerFlag(c, config), token: flagOr(c, "token", config.Token), reason: flagOr(c, "reason", "")}
	if to.url == "" {
		return to, to.openLocal(c.Context(), config)
	}
	if err := ValidServer(to.url); err != nil {
		return nil, Usage("--server: %w", err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout = patience
	to.url, to.close = strings.TrimRight(to.url, "/"), transport.CloseIdleConnections
	to.http = &http.Client{
		Transport: transport,
		// Following a redirect could turn a POST into a GET and send the token to another address.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return to, nil
}

// ServerFlag returns the URL of the server that a command uses, or an empty string if the command uses the API in this process.
func ServerFlag(c *cobra.Command, config Settings) string { return flagOr(c, "server", config.Server) }

// flagOr returns a persistent flag's value, or the given default if the flag is not set.
func flagOr(c *cobra.Command, flag, otherwise string) string {
	value, _ := c.Root().PersistentFlags().GetString(flag) // read from the root, because the complete command has a different --token flag
	return cmp.Or(value, otherwise)
}

// Close closes all connections.
func (at *Client) Close() { at.close() }

// Path replaces the parameters in a route's path, such as /jobs/:id/retry, with the given values in order.
func Path(route string, values ...any) string {
	parts := strings.Split(route, "/")
	for i, part := range parts {
		if strings.HasPrefix(part, ":") {
			parts[i], values = url.PathEscape(fmt.Sprint(values[0])), values[1:]
		}
	}
	return strings.Join(parts, "/")
}

// QueryOf returns the given query parameters, omitting empty ones. pairs alternates names and values.
func QueryOf(pairs ...string) url.Values {
	q := url.Values{}
	for ; len(pairs) > 1; pairs = pairs[2:] {
		if pairs[1] != "" {
			q.Set(pairs[0], pairs[1])
		}
	}
	return q
}

// Get requests a path and decodes the response.
func Get[T any](ctx context.Context, at *Client, path string, query url.Values) (T, error) {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return Do[T](ctx, at, http.MethodGet, path, nil)
}

// Post sends a command and decodes the response. If body is nil, the request has no body.
func Post[T any](ctx context.Context, at *Client, path string, body any) (T, error) {
	return Do[T](ctx, at, http.MethodPost, path, body)
}

// None is the type of a response that the caller ignores.
type None struct{}

// Do sends a request and decodes the response. headers alternates names and values.
func Do[T any](ctx context.Context, at *Client, method, path string, body any, headers ...string) (answer T, err error) {
	if !at.local {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 2*patience)
		defer cancel()
	}
	response, err := at.send(ctx, method, path, body, headers...)
	if err != nil {
		return answer, err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusNoContent {
		return answer, nil
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		const text = "%s %s: decode the response of %s: %w"
		if method != http.MethodGet {
			return answer, Unknown(text, method, path, at.url, err)
		}
		return answer, Unavailable(text, method, path, at.url, err)
	}
	return answer, nil
}

// ListAll returns the rows in the response's name field, fetching pages as needed. A limit in the query applies to the total number of rows; 0
// means all rows.
func ListAll[T any](ctx context.Context, at *Client, path, name string, query url.Values) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		limited, asked := query.Has("limit"), url.Values{}
		maps.Copy(asked, query)
		most, _ := strconv.Atoi(asked.Get("limit"))
		for left := most; ; {
			if limited {
				size := 1000
				if most > 0 {
					size = min(left, size)
				}
				asked.Set("limit", strconv.Itoa(size))
			}
			page, err := Get[map[string]json.RawMessage](ctx, at, path, asked)
			var rows []T
			next := ""
			if err == nil {
				err = json.Unmarshal(page[name], &rows)
			}
			if cursor := page["next_cursor"]; err == nil && cursor != nil {
				err = json.Unmarshal(cursor, &next)
			}
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, row := range rows {
				if !yield(row, nil) {
					return
				}
			}
			if left -= len(rows); next == "" || most > 0 && left <= 0 {
				return
			}
			asked.Set("cursor", next)
		}
	}
}

// Copy writes the response for a path to a writer.
func (at *Client) Copy(ctx context.Context, to io.Writer, path string) error {
	response, err := at.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(to, response.Body); err != nil {
		from := " of " + at.url
		if at.local {
			from = ""
		}
		return Unavailable("the export%s was interrupted, the output is incomplete: %w", from, err)
	}
	return nil
}

// send sends a request. An error response is returned as an error.
func (at *Client) send(ctx context.Context, method, path string, body any, headers ...string) (*http.Response, error) {
	var content io.Reader = http.NoBody
	if body != nil {
		raw, err := text.JSON(body)
		if err != nil {
			return nil, err
		}
		content, headers = bytes.NewReader(raw), append(headers, "Content-Type", "application/json")
	}
	var sent atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }})
	request, err := http.NewRequestWithContext(ctx, method, at.url+path, content)
	if err != nil {
		return nil, Usage("--server: %w", err)
	}
	if at.token != "" {
		headers = append(headers, "Authorization", "Bearer "+at.token)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i+1] != "" {
			request.Header.Set(headers[i], headers[i+1])
		}
	}
	if at.reason != "" {
		request.Header.Set("X-Reason", at.reason)
	}
	response, err := at.http.Do(request)
	if wrapped, ok := errors.AsType[*url.Error](err); ok { // drop the method and the URL from the message
		err = wrapped.Err
	}
	switch {
	case err != nil && at.local:
		return nil, err
	case err != nil && sent.Load() && method != http.MethodGet:
		return nil, Unknown("lost the connection to %s after sending the request, which may have taken effect: check before you repeat it: %w", at.url, err)
	case err != nil:
		return nil, Unavailable("%s does not respond; check that it runs and that --server is correct: %w", at.url, err)
	case response.StatusCode >= 300:
		defer response.Body.Close()
		return nil, at.refusal(method, response)
	}
	return response, nil
}
