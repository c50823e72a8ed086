package settler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/trapeze-run/trapeze/internal/work"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/temporal/internal/wire"
)

// Reader returns a run's writer, which can read results, branches and tokens.
func (s *Settler) Reader(in wire.Run) work.Writer {
	return s.Prepare(in.Claimed(), s.outbox.Lease(in.ID, in.Epoch)).Writer
}

// answerBytes is the approximate maximum size of a reply.
const answerBytes = 500_000

// Read performs a read for a handler without a connection to PostgreSQL.
func (s *Settler) Read(ctx context.Context, in wire.Run, r wire.Read) (a wire.Answer, err error) {
	if err := s.Owns(ctx, in); err != nil {
		return a, err
	}
	from := s.Reader(in)
	switch r.What {
	case wire.ParentResult:
		a.Value, err = from.PreviousResult(ctx)
	case wire.OwnFailure:
		var f job.Failure
		if f, err = from.Failure(ctx); err == nil {
			a.Value, err = json.Marshal(f)
		}
	case wire.Token:
		var token string
		if token, err = from.CompletionToken(ctx); err == nil {
			a.Value, err = json.Marshal(token)
		}
	case wire.Branches:
		n, bytes := 0, 0
		for b, failed := range from.Branches(ctx) {
			if err = failed; err != nil {
				break
			}
			if n++; n <= r.After {
				continue
			}
			if bytes += wire.BranchBytes(&b); bytes > answerBytes && len(a.Branches) > 0 {
				a.More = true
				break
			}
			a.Branches = append(a.Branches, b)
		}
	default:
		err = fmt.Errorf("unknown read %q", r.What)
	}
	if errors.Is(err, job.ErrNotFound) {
		return wire.Answer{NotFound: true, Error: err.Error()}, nil
	}
	return a, s.DBError(err)
}
