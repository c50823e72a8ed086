package runner

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// submission is a job on its way in.
type submission struct {
	kind           string
	args           json.RawMessage
	planned        []job.Step
	plan           json.RawMessage // planned, encoded
	subject        *string
	lane           string
	priority       *int
	delay          time.Duration
	maxAttempts    *int
	maxCrashes     *int
	uniqueKey      *string
	uniqueWhile    *string
	idempotencyKey string
	submitter      string
	foreign        bool
	pipeline       string
	approval       bool
}

// newSubmission encodes and checks a job, without the database.
func (r *engine) newSubmission(args job.Args, options []EnqueueOption) (*submission, error) {
	w := &submission{}
	var rest []job.Args
	for {
		if c, ok := args.(chain); ok {
			args, rest = c.first, append(c.rest[:len(c.rest):len(c.rest)], rest...)
			continue
		}
		if s, ok := args.(step); ok {
			args = s.args
			options = append(s.options[:len(s.options):len(s.options)], options...)
			continue
		}
		break
	}
	if args == nil {
		return nil, fmt.Errorf("submit: no args: %w", job.ErrInvalidArgs)
	}
	w.kind = args.Kind()
	for _, o := range options {
		o(w)
	}
	var err error
	if w.args, err = encodeArgs(w.kind, args); err != nil {
		return nil, err
	}
	if err := w.validate(); err != nil {
		return nil, fmt.Errorf("submit %s: %w", w.kind, err)
	}
	if r.kinds[w.kind] == nil && !w.foreign {
		return nil, fmt.Errorf("submit %q: %w: register its handler, or say Foreign() when another program has it", w.kind, job.ErrUnknownKind)
	}
	w.maxCrashes = r.crashLimit(w.kind)
	if len(rest) > job.MaxChainSteps {
		return nil, fmt.Errorf("submit %s: a chain of %d steps, at most %d: %w", w.kind, len(rest)+1, job.MaxChainSteps, job.ErrTooLarge)
	}
	for _, next := range rest {
		planned, err := r.plan(next, w.foreign)
		if err != nil {
			return nil, err
		}
		w.planned = append(w.planned, planned...)
	}
	if err := w.encodePlan(); err != nil {
		return nil, err
	}
	return w, nil
}

// encodePlan encodes the steps that follow. Args that are nested as deep as they may be are too deep within them.
func (w *submission) encodePlan() (err error) {
	w.plan = nil
	if len(w.planned) > 0 {
		if w.plan, err = asItIs(w.planned); err != nil {
			return fmt.Errorf("plan the steps after %s: %w: %w", w.kind, job.ErrInvalidArgs, err)
		}
	}
	return nil
}

// crashLimit is the limit that a kind sets: it travels with the job, for whoever recovers it may not know the kind.
func (r *engine) crashLimit(kind string) *int {
	if k := r.kinds[kind]; k != nil && k.maxCrashes > 0 {
		return &k.maxCrashes
	}
	return nil
}

// plan turns a later step into what is kept of it until it is reached.
func (r *engine) plan(args job.Args, foreign bool) ([]job.Step, error) {
	w := &submission{foreign: foreign}
	var rest []job.Args
	for {
		if c, ok := args.(chain); ok {
			args, rest = c.first, append(c.rest[:len(c.rest):len(c.rest)], rest...)
			continue
		}
		s, ok := args.(step)
		if !ok {
			break
		}
		args = s.args
		for _, o := range s.options {
			o(w)
		}
	}
	if args == nil {
		return nil, fmt.Errorf("plan step: no args: %w", job.ErrInvalidArgs)
	}
	w.kind = args.Kind()
	var err error
	if w.args, err = encodeArgs(w.kind, args); err != nil {
		return nil, err
	}
	if err := w.validate(); err != nil {
		return nil, fmt.Errorf("plan step %s: %w", w.kind, err)
	}
	if w.delay != 0 || w.maxAttempts != nil || w.uniqueKey != nil || w.idempotencyKey != "" || w.pipeline != "" || w.approval || w.submitter != "" {
		return nil, fmt.Errorf("plan step %s: a step takes a subject, a lane and a priority only: %w", w.kind, job.ErrInvalid)
	}
	if r.kinds[w.kind] == nil && !w.foreign {
		return nil, fmt.Errorf("plan step %q: %w: register its handler, or say Foreign() when another program has it", w.kind, job.ErrUnknownKind)
	}
	steps := []job.Step{{Kind: w.kind, Args: w.args, Lane: w.lane, Subject: w.subject, Priority: w.priority}}
	for _, next := range rest {
		more, err := r.plan(next, foreign)
		if err != nil {
			return nil, err
		}
		steps = append(steps, more...)
	}
	return steps, nil
}

// validate reports every problem at once.
func (w *submission) validate() error {
	var errs []error
	complain := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format+": %w", append(args, job.ErrInvalid)...))
		}
	}
	text := func(name string, s string, limit int) {
		if len(s) > limit {
			complain(false, "%s of %d bytes, at most %d", name, len(s), limit)
		}
		if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
			complain(false, "%s holds bytes that are no text", name)
		}
	}
	errs = append(errs, job.ValidateKind(w.kind))
	text("lane", w.lane, 100)
	text("submitter", w.submitter, 200)
	text("pipeline", w.pipeline, 200)
	text("idempotency key", w.idempotencyKey, job.MaxKeyBytes)
	if w.subject != nil {
		text("subject", *w.subject, job.MaxSubjectBytes)
	}
	if w.uniqueKey != nil {
		text("unique key", *w.uniqueKey, job.MaxKeyBytes)
		complain(*w.uniqueKey != "", "empty unique key")
		complain(*w.uniqueWhile == string(WhilePending) || *w.uniqueWhile == string(WhileActive), "unique while %q", *w.uniqueWhile)
	}
	if w.priority != nil {
		complain(*w.priority >= job.MinPriority && *w.priority <= job.MaxPriority, "priority %d, want %d to %d", *w.priority, job.MinPriority, job.MaxPriority)
	}
	complain(w.delay >= 0, "delay of %s is negative", w.delay)
	complain(w.maxAttempts == nil || *w.maxAttempts > 0, "max attempts below 1")
	complain(w.maxAttempts == nil || *w.maxAttempts <= math.MaxInt32, "max attempts above %d", math.MaxInt32)
	return errors.Join(errs...)
}

// submissionKey is the idempotency key as it is kept: that of a submitter is told from the same words of another by a hash of both, which
// is as short as a key may be, however long they are. Empty: there is none.
func (w *submission) submissionKey() string {
	if w.idempotencyKey == "" || w.submitter == "" {
		return w.idempotencyKey
	}
	sum := sha256.Sum256([]byte(w.submitter + "\x00" + w.idempotencyKey)) // no submitter holds a NUL
	return "sha256:" + hex.EncodeToString(sum[:])
}

// first makes the row of the job that begins a pipeline.
func (w *submission) first(id int64, lane string) store.NewJob {
	n := w.row(id, lane)
	if w.pipeline != "" || len(w.planned) > 0 {
		n.Pipeline = &w.pipeline
	}
	return n
}

// row makes the row of a submission whose plan is encoded.
func (w *submission) row(id int64, lane string) store.NewJob {
	n := store.NewJob{
		ID: id, Kind: w.kind, Lane: lane, Args: w.args, Submitter: w.submitter, Actor: w.submitter, Priority: job.DefaultPriority,
		MaxAttempts: w.maxAttempts, MaxCrashes: w.maxCrashes, UniqueKey: w.uniqueKey, UniqueWhile: w.uniqueWhile,
		DelayMillis: w.delay.Milliseconds(), NeedsApproval: w.approval,
	}
	if w.delay > 0 && n.DelayMillis == 0 {
		n.DelayMillis = 1
	}
	if w.subject != nil {
		n.Subject = *w.subject
	}
	if w.priority != nil {
		n.Priority = *w.priority
	}
	n.Planned = w.plan
	return n
}

// maxDepth is how deep JSON may be nested: half of what encoding/json reads, and PostgreSQL by default, so that it can still be read within
// the plan of a chain, a list of jobs or whatever else is put around it.
const maxDepth = 5_000

// encodeArgs encodes the arguments of a job and refuses what PostgreSQL cannot store.
func encodeArgs(kind string, args job.Args) (json.RawMessage, error) {
	raw, err := encode(args, job.MaxArgsBytes)
	if err != nil {
		return nil, fmt.Errorf("encode the args of %s: %w", kind, err)
	}
	return raw, nil
}

// encode encodes a value as JSON of bounded size that PostgreSQL can store.
func encode(v any, limit int) (json.RawMessage, error) {
	raw, err := asItIs(v)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", job.ErrInvalidArgs, err)
	case len(raw) > limit:
		return nil, fmt.Errorf("%d bytes of JSON, at most %d: %w", len(raw), limit, job.ErrTooLarge)
	case deeper(raw, maxDepth):
		return nil, fmt.Errorf("%w: nested deeper than %d", job.ErrInvalidArgs, maxDepth)
	}
	if what := job.Unstorable(raw); what != "" {
		return nil, fmt.Errorf("%w: %s", job.ErrInvalidArgs, what)
	}
	return raw, nil
}

// deeper reports whether JSON is nested deeper than a limit.
func deeper(raw []byte, limit int) bool {
	if bytes.Count(raw, []byte("["))+bytes.Count(raw, []byte("{")) <= limit {
		return false
	}
	depth, quoted := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++ // whatever is escaped
		case quoted:
		case c == '[' || c == '{':
			if depth++; depth > limit {
				return true
			}
		case c == ']' || c == '}':
			depth--
		}
	}
	return false
}

// asItIs encodes a value as JSON. Nothing here is put into a page, so that JSON which was submitted keeps its bytes.
func asItIs(v any) (json.RawMessage, error) {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	return bytes.TrimSuffix(buffer.Bytes(), []byte("\n")), err
}
