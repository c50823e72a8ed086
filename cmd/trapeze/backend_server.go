package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

func (s *server) Submit(ctx context.Context, submission api.Submission, idempotencyKey string) (made runner.Submitted, err error) {
	header := http.Header{}
	if idempotencyKey != "" {
		header.Set("Idempotency-Key", idempotencyKey)
	}
	var answer struct {
		ID         int64     `json:"id,string"`
		PipelineID int64     `json:"pipeline_id,string"`
		State      job.State `json:"state"`
		Duplicate  bool      `json:"duplicate"`
	}
	err = s.ask(ctx, http.MethodPost, "/jobs", header, submission, &answer)
	return runner.Submitted(answer), err
}

func (s *server) Job(ctx context.Context, id int64) (j job.Job, err error) {
	err = s.get(ctx, fmt.Sprintf("/jobs/%d", id), nil, &j)
	return j, err
}

func (s *server) Obstacles(ctx context.Context, id int64) ([]job.Obstacle, error) {
	var answer struct {
		Obstacles []job.Obstacle `json:"obstacles"`
	}
	err := s.get(ctx, fmt.Sprintf("/jobs/%d/obstacles", id), nil, &answer)
	return answer.Obstacles, err
}

func (s *server) Jobs(ctx context.Context, f store.Filter) (store.Page, error) {
	q := url.Values{}
	set(q, "state", joined(f.States))
	set(q, "kind", f.Kind)
	set(q, "lane", f.Lane)
	set(q, "subject", f.Subject)
	setID(q, "pipeline", f.Pipeline)
	setID(q, "parent", f.Parent)
	if f.Current {
		q.Set("current", "true")
	}
	setTime(q, "since", f.Since)
	if f.Children != nil {
		set(q, "children", strconv.FormatBool(*f.Children))
	}
	set(q, "reason", string(f.Reason))
	set(q, "error_class", string(f.ErrorClass))
	set(q, "error_code", f.ErrorCode)
	setID(q, "limit", int64(f.Limit))
	set(q, "cursor", f.Cursor)
	var page struct {
		Jobs       []job.Job `json:"jobs"`
		NextCursor string    `json:"next_cursor"`
		SearchedTo time.Time `json:"searched_to"`
	}
	err := s.get(ctx, "/jobs", q, &page)
	return store.Page{Jobs: page.Jobs, Cursor: page.NextCursor, Searched: page.SearchedTo}, err
}

func (s *server) Events(ctx context.Context, of history, after string, limit int) ([]job.Event, error) {
	path := "/events"
	switch {
	case of.job != 0:
		path = fmt.Sprintf("/jobs/%d/events", of.job)
	case of.pipeline != 0:
		path = fmt.Sprintf("/pipelines/%d/events", of.pipeline)
	}
	q := url.Values{"limit": {strconv.Itoa(limit)}}
	set(q, "after", after)
	var page struct {
		Events []job.Event `json:"events"`
	}
	err := s.get(ctx, path, q, &page)
	return page.Events, err
}

func (s *server) Cancel(ctx context.Context, id int64) (job.State, error) {
	return s.end(ctx, fmt.Sprintf("/admin/workers/jobs/%d/cancel", id))
}

func (s *server) Stop(ctx context.Context, id int64) (job.State, error) {
	return s.end(ctx, fmt.Sprintf("/admin/workers/jobs/%d/stop", id))
}

func (s *server) end(ctx context.Context, path string) (job.State, error) {
	var answer struct {
		State job.State `json:"state"`
	}
	err := s.ask(ctx, http.MethodPost, path, nil, nil, &answer)
	return answer.State, err
}

func (s *server) Approve(ctx context.Context, id int64) error {
	return s.ask(ctx, http.MethodPost, fmt.Sprintf("/jobs/%d/approve", id), nil, nil, nil)
}

func (s *server) Complete(ctx context.Context, id int64, p completion) error {
	return s.ask(ctx, http.MethodPost, fmt.Sprintf("/jobs/%d/complete", id), nil, p, nil)
}

func (s *server) Pipelines(ctx context.Context, f store.PipelineFilter) (store.PipelinePage, error) {
	q := url.Values{}
	set(q, "status", joined(f.Statuses))
	set(q, "name", f.Name)
	setTime(q, "since", f.Since)
	setID(q, "limit", int64(f.Limit))
	set(q, "cursor", f.Cursor)
	var page struct {
		Pipelines  []job.Pipeline `json:"pipelines"`
		NextCursor string         `json:"next_cursor"`
		SearchedTo time.Time      `json:"searched_to"`
	}
	err := s.get(ctx, "/pipelines", q, &page)
	return store.PipelinePage{Pipelines: page.Pipelines, Cursor: page.NextCursor, Searched: page.SearchedTo}, err
}

func (s *server) Tree(ctx context.Context, id int64, branches int) (t tree, err error) {
	err = s.get(ctx, fmt.Sprintf("/pipelines/%d", id), url.Values{"branches": {strconv.Itoa(branches)}}, &t)
	return t, err
}

func (s *server) Abort(ctx context.Context, id int64) ([]int64, error) {
	var answer struct {
		Aborted []string `json:"aborted"`
	}
	if err := s.ask(ctx, http.MethodPost, fmt.Sprintf("/pipelines/%d/abort", id), nil, nil, &answer); err != nil {
		return nil, err
	}
	return parseIDs(answer.Aborted)
}

func (s *server) RetryPipeline(ctx context.Context, id int64, args any) ([]int64, error) {
	return s.retry(ctx, fmt.Sprintf("/pipelines/%d/retry", id), args)
}

func (s *server) Retry(ctx context.Context, id int64, args any) ([]int64, error) {
	return s.retry(ctx, fmt.Sprintf("/jobs/%d/retry", id), args)
}

func (s *server) retry(ctx context.Context, path string, args any) ([]int64, error) {
	var body any
	if args != nil {
		body = map[string]any{"args": args}
	}
	var answer struct {
		Retried []string `json:"retried"`
	}
	if err := s.ask(ctx, http.MethodPost, path, nil, body, &answer); err != nil {
		return nil, err
	}
	return parseIDs(answer.Retried)
}

func (s *server) Nice(ctx context.Context, id int64, priority int, chain bool) error {
	body := map[string]any{"priority": priority, "chain": chain}
	return s.ask(ctx, http.MethodPatch, fmt.Sprintf("/admin/workers/jobs/%d/priority", id), nil, body, nil)
}

func (s *server) CancelMany(ctx context.Context, of api.Selection) (did api.Many, err error) {
	err = s.ask(ctx, http.MethodPost, "/admin/workers/jobs/cancel", nil, of, &did)
	return did, err
}

func (s *server) RetryMany(ctx context.Context, of api.Selection) (did api.Many, err error) {
	err = s.ask(ctx, http.MethodPost, "/admin/workers/jobs/retry", nil, of, &did)
	return did, err
}

func (s *server) Pods(ctx context.Context, closed bool) ([]job.Pod, error) {
	var answer struct {
		Pods []job.Pod `json:"pods"`
	}
	q := url.Values{}
	if closed {
		q.Set("all", "true")
	}
	err := s.get(ctx, "/admin/workers/pods", q, &answer)
	return answer.Pods, err
}

func (s *server) Audit(ctx context.Context, f store.AuditFilter) ([]store.AuditRow, error) {
	q := url.Values{}
	set(q, "actor", f.Actor)
	set(q, "action", f.Action)
	set(q, "target", f.Target)
	setID(q, "before", f.Before)
	setID(q, "limit", int64(f.Limit))
	var page struct {
		Audit []store.AuditRow `json:"audit"`
	}
	err := s.get(ctx, "/admin/audit", q, &page)
	return page.Audit, err
}

func (s *server) Export(ctx context.Context, what string, to io.Writer) error {
	response, err := s.send(ctx, http.MethodGet, "/admin/export/"+what, nil, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(to, response.Body); err != nil {
		if s.local {
			return unavailable("the export was broken off, what is printed is a part of it: %w", err)
		}
		return unavailable("the export of %s was broken off, what is printed is a part of it: %w", s.url, err)
	}
	return nil
}

func set(q url.Values, name, value string) {
	if value != "" {
		q.Set(name, value)
	}
}

func setID(q url.Values, name string, id int64) {
	if id != 0 {
		q.Set(name, strconv.FormatInt(id, 10))
	}
}

func setTime(q url.Values, name string, at time.Time) {
	if !at.IsZero() {
		q.Set(name, at.Format(time.RFC3339Nano))
	}
}

func joined[T ~string](list []T) string {
	words := make([]string, len(list))
	for i, one := range list {
		words[i] = string(one)
	}
	return strings.Join(words, ",")
}

func parseIDs(texts []string) ([]int64, error) {
	ids := make([]int64, len(texts))
	for i, text := range texts {
		id, err := api.ParseID(text)
		if err != nil {
			return nil, err
		}
		ids[i] = id
	}
	return ids, nil
}
