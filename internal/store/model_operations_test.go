package store_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// operation is a call to the store together with its effect on the model. Both return their result as text. An operation has one stage per
// transaction, and its result is that of the last stage that returns one.
type operation struct {
	name   string
	do     func(ctx context.Context, s *store.Store) (any, error)
	stages []func(m *model) (any, error)
}

// answer returns the result that a caller sees, which is either a value or a known error.
func answer(value any, err error) string {
	for _, known := range []error{job.ErrLeaseLost, job.ErrAlreadyTerminal, job.ErrNotFound, job.ErrCancelled, job.ErrNotQueued,
		job.ErrNotFailed, job.ErrKeyHeld} {
		if errors.Is(err, known) {
			return asLine(value, known.Error())
		}
	}
	if err != nil {
		return "error: " + err.Error()
	}
	return asLine(value)
}

func (v operation) ask(ctx context.Context, s *store.Store) string { return answer(v.do(ctx, s)) }

// apply runs all stages on the model. Each stage takes one tick of the model's clock.
func (v operation) apply(m *model) string {
	last := ""
	for i := range v.stages {
		if a := v.stage(m, i); a != "" {
			last = a
		}
	}
	return last
}

func (v operation) stage(m *model, i int) string {
	m.now++
	value, err := v.stages[i](m)
	if value == nil && err == nil && i < len(v.stages)-1 {
		return ""
	}
	return answer(value, err)
}

// in returns an operation with a single transaction. Both functions return a T.
func in[T any](name string, do func(context.Context, *store.Store) (T, error), apply func(*model) (T, error)) operation {
	return operation{name,
		func(ctx context.Context, s *store.Store) (any, error) { return do(ctx, s) },
		[]func(*model) (any, error){func(m *model) (any, error) { return apply(m) }}}
}

// bare returns an operation whose only result is an error.
func bare(name string, do func(context.Context, *store.Store) error, apply func(*model) error) operation {
	return in(name, func(ctx context.Context, s *store.Store) (any, error) { return nil, do(ctx, s) },
		func(m *model) (any, error) { return nil, apply(m) })
}

func enqueues(podID string, list []store.NewJob) operation {
	return in(fmt.Sprintf("enqueue %s in %s", asLine(list), podID),
		func(ctx context.Context, s *store.Store) (map[int64]store.Place, error) {
			return s.Enqueue(ctx, podID, list)
		},
		func(m *model) (map[int64]store.Place, error) { return m.Enqueue(podID, list), nil })
}

func enqueuesUnique(n store.NewJob) operation {
	return in(fmt.Sprintf("enqueue unique %s", asLine(n)),
		func(ctx context.Context, s *store.Store) (holder int64, err error) {
			return holder, s.Tx(ctx, func(tx pgx.Tx) error {
				if holder, err = store.ReserveKey(ctx, s, tx, n.Kind, *n.UniqueKey, n.ID); err != nil || holder != n.ID {
					return err
				}
				return second(store.EnqueueIn(ctx, s, tx, []store.NewJob{n}, false))
			})
		},
		func(m *model) (int64, error) { return m.EnqueueUnique(n), nil })
}

func claims(podID string, wants []store.Want, kinds []string, isolated bool) operation {
	return in(fmt.Sprintf("claim %v of %v in %s, isolated %v", wants, kinds, podID, isolated),
		func(ctx context.Context, s *store.Store) ([]modelClaim, error) {
			return claimsOf(s.Claim(ctx, podID, wants, kinds, nil, isolated))
		},
		func(m *model) ([]modelClaim, error) { return m.Claim(podID, wants, kinds, isolated), nil })
}

func yields(keys ...store.Line) operation {
	return in(fmt.Sprintf("yield %v", keys),
		func(ctx context.Context, s *store.Store) (int, error) {
			yielded, err := s.Yield(ctx, keys)
			return len(yielded), err
		},
		func(m *model) (int, error) { return m.Yield(keys), nil })
}

func admits(keys ...store.Line) operation {
	return in(fmt.Sprintf("admit %v", keys),
		func(ctx context.Context, s *store.Store) ([]string, error) {
			a, err := s.Admit(ctx, keys)
			return lanesOf(a.Jobs), err
		},
		func(m *model) ([]string, error) { return m.Admit(keys), nil })
}

// admitsMissed reads a page of subjects, lets pending jobs yield, and admits others, in one transaction each.
func admitsMissed() operation {
	var keys []store.Line
	return operation{"admit the missed jobs",
		func(ctx context.Context, s *store.Store) (any, error) {
			list, err := s.AdmitMissed(ctx)
			return lanesOf(list), err
		},
		[]func(*model) (any, error){
			func(m *model) (any, error) { keys = m.waitingKeys(); return nil, nil },
			func(m *model) (any, error) { m.Yield(keys); return nil, nil },
			func(m *model) (any, error) { return m.Admit(keys), nil },
		}}
}

func lanesOf(list []store.AdmittedJob) (lanes []string) {
	for _, j := range list {
		lanes = append(lanes, j.Lane)
	}
	slices.Sort(lanes)
	return lanes
}

func enqueuesIn(list []store.NewJob) operation {
	return in(fmt.Sprintf("enqueue %s in a transaction of the host", asLine(list)),
		func(ctx context.Context, s *store.Store) (places map[int64]store.Place, err error) {
			return places, s.Tx(ctx, func(tx pgx.Tx) error {
				places, err = store.EnqueueIn(ctx, s, tx, list, false)
				return err
			})
		},
		func(m *model) (map[int64]store.Place, error) { return m.EnqueueIn(list), nil })
}

// claimsOf reduces a claim's result to the fields that the model tracks.
func claimsOf(c store.Claims, err error) (found []modelClaim, _ error) {
	for _, j := range c.Jobs {
		found = append(found, modelClaim{ID: j.ID, Fence: j.Fence, Attempt: j.Attempt, Crashes: j.Crashes,
			Priority: j.Priority, Step: j.Step, Isolated: j.Isolated, Kind: j.Kind, Lane: j.Lane, Subject: j.Subject,
			Checkpoint: string(j.Checkpoint), Snoozes: j.Snoozes})
	}
	slices.SortFunc(found, func(a, b modelClaim) int { return cmp.Compare(a.ID, b.ID) })
	return found, err
}

func finishes(podID string, list ...store.Ending) operation {
	return in(fmt.Sprintf("finish %s in %s", asLine(list), podID),
		func(ctx context.Context, s *store.Store) (map[int64]store.Ended, error) {
			ended, err := s.Finish(ctx, podID, list)
			for _, e := range ended {
				if e.Heir != nil {
					e.Heir.ReadyAt = time.Time{}
				}
			}
			return ended, err
		},
		func(m *model) (map[int64]store.Ended, error) { return m.Finish(podID, list), nil })
}

func parks(l job.Lease, why string, millis int64) operation {
	return bare(fmt.Sprintf("%s %+v after %d ms", why, l, millis),
		func(ctx context.Context, s *store.Store) error {
			wait := time.Duration(millis) * time.Millisecond
			if why == "snooze" { // any number of snoozes will do, so use the fence
				_, err := s.Snooze(ctx, l, int(l.Fence), wait, store.Retry{Message: "boom"})
				return err
			}
			_, err := s.Park(ctx, l, wait, store.Retry{Message: "boom"})
			return err
		},
		func(m *model) error { return m.Park(l, why, millis, "boom") })
}

func handsBack(podID string, leases ...job.Lease) operation {
	return in(fmt.Sprintf("hand back %+v in %s", leases, podID),
		func(ctx context.Context, s *store.Store) (map[int64]bool, error) {
			return s.HandBack(ctx, podID, leases, "stop")
		},
		func(m *model) (map[int64]bool, error) { return m.HandBack(podID, leases, "stop"), nil })
}

func progresses(l job.Lease, p job.Progress) operation {
	return bare(fmt.Sprintf("progress %s of %+v", asLine(p), l),
		func(ctx context.Context, s *store.Store) error { return s.Progress(ctx, l, p) },
		func(m *model) error { return m.Progress(l, p) })
}

func checkpoints(l job.Lease, checkpoint json.RawMessage) operation {
	return in(fmt.Sprintf("checkpoint %s of %+v", checkpoint, l),
		func(ctx context.Context, s *store.Store) (number int, err error) {
			tx, err := store.Hold(ctx, s, s.Pool(), l, time.Minute, false)
			if err != nil {
				return 0, err
			}
			defer tx.End(ctx)
			return tx.Number(), tx.Checkpoint(ctx, s, l.JobID, checkpoint)
		},
		func(m *model) (int, error) { return m.Checkpoint(l, checkpoint) })
}

func keeps(l job.Lease, checkpoint json.RawMessage) operation {
	return bare(fmt.Sprintf("keep checkpoint %s of %+v", checkpoint, l),
		func(ctx context.Context, s *store.Store) error { return s.Keep(ctx, l, checkpoint) },
		func(m *model) error { return m.Keep(l, checkpoint) })
}

func emits(l job.Lease, n int) operation {
	list := make([]store.Emission, n)
	for i := range list {
		list[i] = store.Emission{Event: "my.event", Level: "info", Message: fmt.Sprintf("hello %d", i)}
	}
	return bare(fmt.Sprintf("emit %d events of %+v", n, l),
		func(ctx context.Context, s *store.Store) error { return s.Emit(ctx, l, list...) },
		func(m *model) error { return m.Emit(l, list) })
}

func notesStale(l job.Lease) operation {
	return bare(fmt.Sprintf("note the stale result of %+v", l),
		func(ctx context.Context, s *store.Store) error { return s.StaleResult(ctx, l, "succeeded") },
		func(m *model) error { m.StaleResult(l, "succeeded"); return nil })
}

func readsBack(l job.Lease) operation {
	return in(fmt.Sprintf("read back %+v", l),
		func(ctx context.Context, s *store.Store) (store.ClaimOutcome, error) {
			found, err := s.ClaimOutcomes(ctx, l.Pod, []job.Lease{l}, nil, true)
			return found[l.JobID], err
		},
		func(m *model) (store.ClaimOutcome, error) { return m.ClaimOutcome(l), nil })
}
