package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/store"
)

// answerError is an error response from a server.
type answerError struct {
	status int
	code   string // the API's error code; empty if a server in front of the API responded
	change bool   // whether the request was meant to change something
	text   string
	cause  error // the corresponding error in package job, or nil
}

func (e *answerError) Error() string { return e.text }
func (e *answerError) Unwrap() error { return e.cause }

// temporary reports whether a retry might succeed.
func (e *answerError) temporary() bool {
	return e.status == http.StatusTooManyRequests || e.status >= http.StatusInternalServerError && e.code != "internal"
}

// ExitsWith returns the exit code for the response. An error from package job determines the code if the response corresponds to one;
// otherwise the HTTP status does.
func (e *answerError) ExitsWith() int {
	if code := Code(e.cause); code != CodeOK && code != CodeRefused {
		return code
	}
	gateway := e.code == "" && (e.status == http.StatusBadGateway || e.status == http.StatusGatewayTimeout)
	switch {
	case e.change && (gateway || e.code == "internal"):
		return CodeUnknown
	case e.cause != nil:
		return CodeRefused
	case e.status >= http.StatusInternalServerError, e.status == http.StatusTooManyRequests:
		return CodeUnavailable
	case e.code == "", e.status == http.StatusBadRequest, e.status == http.StatusUnauthorized:
		return CodeUsage
	}
	return CodeRefused
}

// refusal converts a server's error response to an error that suggests a remedy.
func (at *Client) refusal(method string, response *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	var p struct {
		Code, Message, Detail string
		RequestID             string `json:"request_id"`
	}
	_ = json.Unmarshal(body, &p)
	e := &answerError{status: response.StatusCode, code: p.Code, change: method != http.MethodGet, text: p.Detail, cause: api.ErrorOf(p.Code)}
	if e.text == "" {
		e.text = p.Message
	}
	switch {
	case p.Code == "" && response.StatusCode < 400:
		e.text = fmt.Sprintf("%s redirects to %s: use that address for --server", at.url, response.Header.Get("Location"))
	case p.Code == "":
		e.text = fmt.Sprintf("%s returned %s, which is not a response of the API: check the path prefix of --server", at.url, response.Status)
	case p.Code == "unauthenticated":
		e.text = at.url + " requires authentication: set TRAPEZE_TOKEN to a valid token"
	case p.Code == "forbidden":
		e.text = at.url + ": " + p.Message + ": " + p.Detail
	case p.Code == "not_found" && p.Detail == "":
		e.text = fmt.Sprintf("%s has no route %s %s: check its release and the path prefix of --server", at.url, method, response.Request.URL.Path)
	case p.Code == "internal", p.Code == "unavailable":
		e.text = fmt.Sprintf("%s: %s (request %s)", at.url, e.text, p.RequestID)
	}
	return e
}

// NotFound reports whether err is a server's response that the resource does not exist.
func NotFound(err error) bool {
	answer, ok := errors.AsType[*answerError](err)
	return ok && answer.status == http.StatusNotFound
}

// MayBeTemporary reports whether err may be temporary, as it is when the database or the server is briefly unavailable.
func MayBeTemporary(err error) bool {
	if answer, ok := errors.AsType[*answerError](err); ok {
		return answer.temporary()
	}
	return store.Transient(err)
}
