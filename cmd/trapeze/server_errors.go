package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/trapeze-run/trapeze/api"
)

// answerError is an error that a server answered with.
type answerError struct {
	status int
	code   string // of the API; empty: something in front of it answered
	change bool   // the request was to change something
	text   string
	cause  error // of package job; nil: none has this code
}

func (e *answerError) Error() string { return e.text }
func (e *answerError) Unwrap() error { return e.cause }

// passing reports whether another try may be answered otherwise.
func (e *answerError) passing() bool {
	return e.status == http.StatusTooManyRequests || e.status >= http.StatusInternalServerError && e.code != "internal"
}

// ExitCode is the one of the error of package job that an answer stands for, or goes by its status.
func (e *answerError) ExitCode() int {
	if code := exitCode(e.cause); code != exitOK && code != exitRefused {
		return code
	}
	gateway := e.code == "" && (e.status == http.StatusBadGateway || e.status == http.StatusGatewayTimeout)
	switch {
	case e.change && (gateway || e.code == "internal"):
		return exitUnknown
	case e.cause != nil:
		return exitRefused
	case e.status >= http.StatusInternalServerError, e.status == http.StatusTooManyRequests:
		return exitUnavailable
	case e.code == "", e.status == http.StatusBadRequest, e.status == http.StatusUnauthorized:
		return exitUsage
	}
	return exitRefused
}

// refusal reads the error that a server answered with, and says what to do about it.
func (s *server) refusal(method string, response *http.Response) error {
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
		e.text = fmt.Sprintf("%s redirects to %s: give that as --server", s.url, response.Header.Get("Location"))
	case p.Code == "":
		e.text = fmt.Sprintf("%s answered %s, not as the API does: is the prefix of --server right?", s.url, response.Status)
	case p.Code == "unauthenticated":
		e.text = s.url + " does not know who asks: set TRAPEZE_TOKEN to a token that it knows"
	case p.Code == "forbidden":
		e.text = s.url + ": " + p.Message + ": " + p.Detail
	case p.Code == "not_found" && p.Detail == "":
		e.text = fmt.Sprintf("%s has no %s %s: is it of an older release, or is the prefix of --server right?", s.url, method, response.Request.URL.Path)
	case p.Code == "internal", p.Code == "unavailable":
		e.text = fmt.Sprintf("%s: %s (request %s)", s.url, e.text, p.RequestID)
	}
	return e
}
