package feed

import (
	"context"
	"encoding/json"
	"strconv"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/internal/text"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// minPollInterval is the minimum interval between two polls.
	minPollInterval = 20 * time.Millisecond
	// pageSize is the maximum number of events that one statement reads.
	pageSize = 1000
	// minNoteInterval is the minimum pause between two reads of the jobs' progress and of the feed's lag. notesTimes is the pause as a
	// multiple of the previous read's duration.
	minNoteInterval = 500 * time.Millisecond
	notesTimes      = 20
	// checkEvery is the interval at which the tail checks whether the database's history has changed. A runner's heartbeats notice a change
	// sooner.
	checkEvery = 5 * time.Second
)

// batch is published to a topic by the tail.
type batch struct {
	events []*event
	seen   view.Seen // for a pipeline: the transactions covered by this and earlier batches
	note   []byte    // a job's progress as JSON, instead of events
}

// event is an event with its JSON encoding, which the streams share.
type event struct {
	view.News
	data []byte
}

// position is the tail's position.
type position struct {
	epoch string
	seen  view.Seen
	last  view.Position
}

// tail reads new events while there are clients. Except for now, its fields are used only by its goroutine.
type tail struct {
	f      *Feed
	cancel context.CancelFunc
	ended  chan struct{}

	epoch   string
	history string         // history to which epoch belongs, as identified by the store
	checked time.Time      // when epoch was last read
	seen    *view.Seen     // nil if no job or pipeline is watched
	last    *view.Position // nil if no client watches all events
	notes   map[topic]string
	noted   time.Time // when to read progress and lag again
	failed  time.Time // time of the first failed poll since the last successful one; zero if there is none

	mu  sync.Mutex
	now position
}

func startTail(f *Feed) *tail {
	ctx, cancel := context.WithCancel(context.Background())
	t := &tail{f: f, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(t.ended)
		defer cancel()
		t.run(ctx)
	}()
	return t
}

// stop stops the tail, if there is one, and waits for it.
func (t *tail) stop() {
	if t != nil {
		t.cancel()
		<-t.ended
	}
}

func (t *tail) position() position {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now
}

// run polls until ctx is cancelled.
func (t *tail) run(ctx context.Context) {
	defer t.f.opts.Metrics.FeedLag.Set(0)
	for {
		began := time.Now()
		t.pollOnce(ctx)
		least := max(minPollInterval, 2*time.Since(began)) // polls take up at most half of the time, however often they are requested
		timer := time.NewTimer(max(t.f.opts.Every, least))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-t.f.knock:
			timer.Reset(max(0, least-time.Since(began)))
			select {
			case <-ctx.Done():
			case <-timer.C:
			}
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// pollOnce polls, and notifies the subscribers that are waiting for the poll.
func (t *tail) pollOnce(ctx context.Context) {
	jobs, pipelines, all, joining := t.f.topics(t)
	err := t.poll(ctx, jobs, pipelines, all)
	if err == nil {
		t.failed = time.Time{}
		t.mu.Lock()
		t.now.epoch = t.epoch
		if t.seen != nil {
			t.now.seen = *t.seen
		}
		if t.last != nil {
			t.now.last = *t.last
		}
		t.mu.Unlock()
	}
	if err != nil && ctx.Err() != nil { // the tail was stopped, not the subscribers
		err = ErrStuck
	}
	for _, c := range joining {
		c <- err
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	t.f.opts.Logger.DebugContext(ctx, "feed poll failed", telemetry.Err, err)
	if t.failed.IsZero() {
		t.failed = time.Now()
	}
	if time.Since(t.failed) > t.f.opts.PatientFor {
		t.f.opts.Logger.WarnContext(ctx, "ending streams: feed polls failed for too long", telemetry.Err, err)
		t.f.bus.CutAll(ErrStuck)
	}
}

func (t *tail) poll(ctx context.Context, jobs, pipelines []int64, all bool) error {
	some := len(jobs)+len(pipelines) > 0
	if !some {
		t.seen = nil
	}
	if !all {
		t.last = nil
	}
	history := t.f.store.History()
	if some && t.seen == nil || all && t.last == nil || !t.failed.IsZero() || history != t.history || time.Since(t.checked) > checkEvery {
		now, err := view.ReadFeedNow(ctx, t.f.store)
		if err != nil {
			return err
		}
		if t.historyChanged(now) {
			t.f.bus.CutAll(ErrMoved)
			t.seen, t.last = nil, nil
		}
		t.epoch, t.history, t.checked = now.Epoch, history, time.Now()
		if t.seen == nil {
			t.seen = &now.Seen
		}
		if t.last == nil {
			t.last = &now.Last
		}
	}
	if some {
		if err := t.publishWatched(ctx, jobs, pipelines); err != nil {
			return err
		}
	}
	if all {
		if err := t.publishAll(ctx); err != nil {
			return err
		}
	}
	if now := time.Now(); now.After(t.noted) {
		if err := t.publishNotes(ctx, jobs, pipelines, all); err != nil {
			return err
		}
		t.noted = time.Now().Add(max(minNoteInterval, notesTimes*time.Since(now)))
	}
	return nil
}

// historyChanged reports whether the database has a different history, or is at an earlier position, than at the previous read.
func (t *tail) historyChanged(now view.FeedNow) bool {
	return t.epoch != "" && t.epoch != now.Epoch || t.seen != nil && t.seen.Upto >= now.Next || t.last != nil && t.last.Xid >= now.Next
}

// publishWatched publishes the new events of jobs and pipelines.
func (t *tail) publishWatched(ctx context.Context, jobs, pipelines []int64) error {
	list, seen, err := view.ReadNews(ctx, t.f.store, *t.seen, jobs, pipelines)
	if err != nil {
		return err
	}
	t.seen = &seen
	wanted := map[topic]*batch{}
	for _, id := range jobs {
		wanted[topic{aJob, id}] = &batch{}
	}
	for _, id := range pipelines {
		wanted[topic{aPipeline, id}] = &batch{seen: seen}
	}
	for _, n := range list {
		e, err := encode(n)
		if err != nil {
			return err
		}
		// Publish only to topics that were known when this poll started, because a later subscriber would miss earlier events of the same
		// batch.
		for _, to := range []topic{{aJob, *n.Job}, {aPipeline, n.Pipeline}} {
			if b := wanted[to]; b != nil {
				b.events = append(b.events, e)
			}
		}
	}
	for to, b := range wanted {
		if len(b.events) > 0 {
			t.f.bus.Publish(to, b)
		}
	}
	return nil
}

// publishAll publishes the new events that precede the oldest open transaction.
func (t *tail) publishAll(ctx context.Context) error {
	for {
		page, err := view.FeedPage(ctx, t.f.store, *t.last, "", pageSize)
		if err != nil || len(page) == 0 {
			return err
		}
		b := &batch{}
		for _, n := range page {
			e, err := encode(n)
			if err != nil {
				return err
			}
			b.events = append(b.events, e)
		}
		last := page[len(page)-1].Position()
		t.last = &last
		t.f.bus.Publish(topic{kind: everything}, b)
		if len(page) < pageSize {
			return nil
		}
	}
}

// publishNotes publishes changes in the jobs' progress, and measures the lag of the feed of all events.
func (t *tail) publishNotes(ctx context.Context, jobs, pipelines []int64, all bool) error {
	if all {
		lag, err := view.FeedLag(ctx, t.f.store)
		if err != nil {
			return err
		}
		t.f.opts.Metrics.FeedLag.Set(lag.Seconds())
	} else {
		t.f.opts.Metrics.FeedLag.Set(0)
	}
	if len(jobs)+len(pipelines) == 0 {
		t.notes = nil
		return nil
	}
	list, err := view.Notes(ctx, t.f.store, jobs, pipelines)
	if err != nil {
		return err
	}
	notes := make(map[topic]string, len(list))
	for _, n := range list {
		if n.Progress == (job.Progress{}) {
			continue // only a checkpoint has changed
		}
		data, err := json.Marshal(note{strconv.FormatInt(n.Job, 10), n.Progress})
		if err != nil {
			return err
		}
		to := topic{aJob, n.Job}
		if n.Pipeline != 0 {
			to = topic{aPipeline, n.Pipeline}
		}
		notes[to] = string(data)
		if t.notes[to] != notes[to] {
			t.f.bus.Publish(to, &batch{note: data})
		}
	}
	t.notes = notes
	return nil
}

// note is the progress reported by a job.
type note struct {
	Job string `json:"job"`
	job.Progress
}

// encode encodes an event as a line of JSON, in the format of exports.
func encode(n view.News) (*event, error) {
	data, err := text.JSON(n.Event)
	if err != nil {
		return nil, err
	}
	return &event{News: n, data: data}, nil
}
