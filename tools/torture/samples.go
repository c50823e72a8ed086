package torture

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

const (
	sampleEvery  = 100 * time.Millisecond
	numbersEvery = time.Second
	commitEvery  = 250 * time.Millisecond
	sampleWithin = time.Second            // time limit for a sample
	commitWithin = 10 * time.Second       // time limit for a commit
	numberWithin = 500 * time.Millisecond // time limit for reading a pod's numbers; if it is exceeded, they are missing from the sample
)

// sampler records the running jobs at short intervals and the pods' resource usage at longer ones. A failed query produces no sample.
type sampler struct {
	w       *World
	samples *history.Writer
	client  *http.Client
}

func newSampler(w *World) (*sampler, error) {
	samples, err := history.NewWriter(w.Dir, history.SamplesFile)
	if err != nil {
		return nil, err
	}
	return &sampler{w: w, samples: samples, client: &http.Client{Timeout: numberWithin, Transport: &http.Transport{DisableKeepAlives: true}}}, nil
}

// run takes samples until ctx is cancelled, and then closes the file. The pods' numbers are read concurrently, because a frozen pod does
// not respond, and commits are made concurrently, because the disk may be busy. The results go into the next sample.
func (s *sampler) run(ctx context.Context) {
	numbers, commits := make(chan []history.PodNumbers), make(chan history.Commit)
	var beside sync.WaitGroup
	beside.Go(func() { every(ctx, numbersEvery, numbers, s.numbers) })
	beside.Go(func() { every(ctx, commitEvery, commits, s.commit) })
	for tick := time.NewTicker(sampleEvery); ctx.Err() == nil; {
		select {
		case <-ctx.Done():
			tick.Stop()
		case <-tick.C:
			s.sample(ctx, numbers, commits)
		}
	}
	beside.Wait()
	if err := s.samples.Close(); err != nil {
		s.w.fail(err)
	}
}

// every calls get repeatedly until ctx is cancelled, pausing for d after each call, and sends the results of successful calls to the
// channel.
func every[T any](ctx context.Context, d time.Duration, to chan<- T, get func(context.Context) (T, error)) {
	for ; ctx.Err() == nil; pause(ctx, d) {
		one, err := get(ctx)
		if err != nil {
			continue
		}
		select {
		case to <- one:
		case <-ctx.Done():
		}
	}
}

// sample takes one sample. It adds new numbers and a new commit if there are any.
func (s *sampler) sample(ctx context.Context, numbers <-chan []history.PodNumbers, commits <-chan history.Commit) {
	one, err := s.look(ctx)
	if err != nil {
		return
	}
	select {
	case one.Pods = <-numbers:
	default:
	}
	select {
	case c := <-commits:
		one.Commit = &c
	default:
	}
	if err := s.samples.Write(one); err != nil {
		s.w.fail(err)
	}
}

// runningSQL reads the running jobs, as JSON with the field names of [history.Running], and the expiry times of open leases, both in one
// snapshot.
const runningSQL = `
select coalesce(json_agg(json_build_object('job', id::text, 'kind', kind, 'subject', subject, 'lane', lane,
	'pod_id', pod, 'fence', fence)), '[]')::text,
	(select coalesce(json_object_agg(id, lease_until), '{}')::text from trapeze.pods where closed_at is null)
from trapeze.live where state = 'running'`

func (s *sampler) look(ctx context.Context) (history.Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, sampleWithin)
	defer cancel()
	one := history.Sample{T: time.Now()}
	var running, leases string
	if err := s.w.Admin.QueryRow(ctx, runningSQL).Scan(&running, &leases); err != nil {
		return one, err
	}
	one.Took = time.Since(one.T)
	return one, errors.Join(json.Unmarshal([]byte(running), &one.Running), json.Unmarshal([]byte(leases), &one.Leases))
}

// commitSQL writes a few bytes to the write-ahead log, so that its commit waits for the disk. Nothing reads the message.
const commitSQL = `select pg_logical_emit_message(true, 'torture', '')`

func (s *sampler) commit(ctx context.Context) (history.Commit, error) {
	ctx, cancel := context.WithTimeout(ctx, commitWithin)
	defer cancel()
	began := time.Now()
	_, err := s.w.Admin.Exec(ctx, commitSQL)
	return history.Commit{T: began, Took: time.Since(began)}, err
}
