package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// Submission is a job on its way in, as JSON: the body of POST /jobs, and what the command line submits. Only the kind is
// required.
type Submission struct {
	Kind        string          `json:"kind"`
	Args        json.RawMessage `json:"args,omitempty"`
	Subject     *string         `json:"subject,omitempty"`
	Lane        string          `json:"lane,omitempty"`
	Priority    *int            `json:"priority,omitempty"` // missing: the default; 0 means 0
	Delay       Delay           `json:"delay,omitempty"`
	MaxAttempts *int            `json:"max_attempts,omitempty"`
	UniqueKey   string          `json:"unique_key,omitempty"`
	UniqueWhile string          `json:"unique_while,omitempty"` // pending (default) or active
	Foreign     bool            `json:"foreign,omitempty"`      // another program has the handlers: this pod need not know the kinds
	Approval    bool            `json:"needs_approval,omitempty"`
	Chain       []Step          `json:"chain,omitempty"` // the steps that follow
}

// Step is a step of a chain. What it leaves out it takes from the step before it.
type Step struct {
	Kind     string          `json:"kind"`
	Args     json.RawMessage `json:"args,omitempty"`
	Lane     string          `json:"lane,omitempty"`
	Subject  *string         `json:"subject,omitempty"`
	Priority *int            `json:"priority,omitempty"`
}

// Delay is a length of time in JSON: seconds as a number, or text such as "1m30s".
type Delay time.Duration

// MarshalJSON implements [json.Marshaler].
func (d Delay) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON implements [json.Unmarshaler].
func (d *Delay) UnmarshalJSON(raw []byte) error {
	text := string(bytes.Trim(raw, `"`))
	if text == "null" || text == "" {
		return nil
	}
	if seconds, err := strconv.ParseFloat(text, 64); err == nil {
		const most = 100 * 365 * 24 * 3600
		if !(seconds >= 0 && seconds <= most) {
			return fmt.Errorf("delay %s: want 0 to %d seconds", raw, most)
		}
		*d = Delay(seconds * float64(time.Second))
		return nil
	}
	length, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("delay %s: want seconds, or text such as \"1m30s\"", raw)
	}
	*d = Delay(length)
	return nil
}

// Submit submits s to r, with further options. Its errors are those of [runner.Runner.Submit].
func (s Submission) Submit(ctx context.Context, r *runner.Runner, more ...runner.EnqueueOption) (runner.Submitted, error) {
	options := jobOptions(s.Lane, s.Subject, s.Priority)
	if s.Delay != 0 {
		options = append(options, runner.Delay(time.Duration(s.Delay)))
	}
	if s.MaxAttempts != nil {
		options = append(options, runner.MaxAttempts(*s.MaxAttempts))
	}
	if s.Approval {
		options = append(options, runner.NeedsApproval())
	}
	if s.UniqueKey != "" {
		while := runner.WhilePending
		if s.UniqueWhile != "" {
			while = runner.UniqueWhile(s.UniqueWhile)
		}
		options = append(options, runner.Unique(s.UniqueKey, while))
	}
	if s.Foreign {
		options = append(options, runner.Foreign())
	}
	var args job.Args = runner.Raw{Name: s.Kind, JSON: s.Args}
	if len(s.Chain) > 0 {
		steps := make([]job.Args, len(s.Chain))
		for i, one := range s.Chain {
			steps[i] = runner.Step(runner.Raw{Name: one.Kind, JSON: one.Args}, jobOptions(one.Lane, one.Subject, one.Priority)...)
		}
		args = runner.Chain(args, steps...)
	}
	submitted, err := r.Submit(ctx, args, append(options, more...)...)
	if err != nil || !submitted.Duplicate {
		return submitted, err
	}
	// Whoever holds the key may be anywhere by now.
	holder, err := r.Get(ctx, submitted.ID)
	if errors.Is(err, job.ErrNotFound) { // its retention is over
		return submitted, nil
	}
	submitted.PipelineID, submitted.State = holder.PipelineID, holder.State
	return submitted, err
}

func jobOptions(lane string, subject *string, priority *int) []runner.EnqueueOption {
	var options []runner.EnqueueOption
	if lane != "" {
		options = append(options, runner.Lane(lane))
	}
	if subject != nil {
		options = append(options, runner.Subject(*subject))
	}
	if priority != nil {
		options = append(options, runner.Priority(*priority))
	}
	return options
}

// Decode reads one JSON value into v: a field that v does not have, one that is there twice, a second value, and text
// that is no UTF-8 are errors.
func Decode(body io.Reader, v any) error {
	raw, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	if what := job.Unstorable(raw); what != "" {
		return fmt.Errorf("%w: %s, which PostgreSQL cannot store", errText, what)
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(v); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("it is empty")
		}
		return fmt.Errorf("%w: %w", errJSON, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: something follows the value", errJSON)
	}
	if pointer, found := twice(raw); found {
		return fmt.Errorf("%w: %.200s is there twice", errJSON, pointer)
	}
	return nil
}

var (
	errText = errors.New("invalid text")
	errJSON = errors.New("no JSON of the wanted form")
)
