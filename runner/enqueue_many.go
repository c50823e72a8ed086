package runner

import (
	"context"
	"fmt"
	"time"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/job"
)

// manyAtOnce is how many jobs one statement of EnqueueMany inserts.
const manyAtOnce = 2000

// EnqueueMany submits jobs with the same options, pending or awaiting approval, and returns their ids in order. Each 2,000 of them are one
// commit: after an error the ids returned are those that are known to be committed. Keys are not among its options.
func (r *Runner) EnqueueMany(ctx context.Context, list []job.Args, options ...EnqueueOption) ([]int64, error) {
	var done []int64
	lanes := map[[2]string]string{} // by kind and the lane that was named: asked once a call
	for len(list) > 0 {
		part := list[:min(len(list), manyAtOnce)]
		list = list[len(part):]
		rows := make([]store.NewJob, len(part))
		ids, err := r.front.NewIDs(ctx, len(part))
		if err != nil {
			return done, err
		}
		for i, args := range part {
			w, err := r.newSubmission(args, options)
			if err != nil {
				return done, err
			}
			if w.uniqueKey != nil || w.idempotencyKey != "" {
				return done, fmt.Errorf("submit many: keys are for one job at a time: %w", job.ErrInvalid)
			}
			// The steps of a chain name lanes of their own.
			key := [2]string{w.kind, w.lane}
			lane, known := lanes[key]
			if !known || len(w.planned) > 0 {
				if lane, err = r.laneFor(ctx, w); err != nil {
					return done, err
				}
				lanes[key] = lane
			}
			rows[i] = w.first(ids[i], lane)
		}
		inserting, span := r.tracing.submission(ctx, rows[0].Kind, rows[0].Lane, len(rows))
		if trace := traceparent(span); trace != "" {
			for i := range rows {
				rows[i].Trace = trace
			}
		}
		_, err = r.insert(inserting, r.boot(), rows)
		submitted(span, 0, err)
		if err != nil {
			return done, err
		}
		r.metrics.Enqueued.Add(float64(len(part)))
		for i := range rows {
			done = append(done, rows[i].ID)
		}
		if rows[0].DelayMillis > 0 { // as all others
			r.due.parked(time.Duration(rows[0].DelayMillis) * time.Millisecond)
			r.poller.Nudge()
		}
	}
	r.wake()
	r.wakePeers()
	return done, nil
}
