package feed

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/job"
)

const (
	// looksApart is the least time between two looks.
	looksApart = 20 * time.Millisecond
	// pageSize is how many events one statement reads, where there may be many.
	pageSize = 1000
	// notesApart is the least time between two looks at how far jobs are, and at the feed's lag; notesTimes is how many times its own
	// length the wait after one is.
	notesApart = 500 * time.Millisecond
	notesTimes = 20
	// checkEvery is the interval at which the tail checks that it reads the same history. The heartbeats of a runner detect a change sooner.
	checkEvery = 5 * time.Second
)

// batch is what the tail hands out under a topic.
type batch struct {
	events []*event
	seen   view.Seen // of a pipeline: what has been seen with these events
	note   []byte    // how far a job is, in JSON, instead of events
}

// event is an event and its JSON, which all streams share.
type event struct {
	view.News
	data []byte
}

// stand is where the tail stands.
type stand struct {
	epoch string
	seen  view.Seen
	last  view.Position
}

// tail reads what is new while somebody watches. Its fields belong to its goroutine, but for now.
type tail struct {
	f      *Feed
	cancel context.CancelFunc
	ended  chan struct{}

	epoch   string
	history string         // of which epoch is, as the store knows it
	checked time.Time      // when epoch was last read
	seen    *view.Seen     // nil: no job and no pipeline is watched
	last    *view.Position // nil: nobody watches everything
	notes   map[topic]string
	noted   time.Time // when to look at notes again
	failed  time.Time // the first of the looks that have failed since the last that did not; zero: none

	mu  sync.Mutex
	now stand
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

// stop ends the tail, if there is one, and waits for that.
func (t *tail) stop() {
	if t != nil {
		t.cancel()
		<-t.ended
	}
}

func (t *tail) standing() stand {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now
}

// run looks until ctx ends.
func (t *tail) run(ctx context.Context) {
	defer t.f.opts.Metrics.FeedLag.Set(0)
	for {
		began := time.Now()
		t.round(ctx)
		least := max(looksApart, 2*time.Since(began)) // looks are half of the time at most, however often somebody knocks
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

// round looks once, and tells those who waited for it.
func (t *tail) round(ctx context.Context) {
	jobs, pipelines, all, joining := t.f.watched(t)
	err := t.look(ctx, jobs, pipelines, all)
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

func (t *tail) look(ctx context.Context, jobs, pipelines []int64, all bool) error {
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
		if t.elsewhere(now) {
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
		if err := t.tellSome(ctx, jobs, pipelines); err != nil {
			return err
		}
	}
	if all {
		if err := t.tellAll(ctx); err != nil {
			return err
		}
	}
	if now := time.Now(); now.After(t.noted) {
		if err := t.tellNotes(ctx, jobs, pipelines, all); err != nil {
			return err
		}
		t.noted = time.Now().Add(max(notesApart, notesTimes*time.Since(now)))
	}
	return nil
}

// elsewhere reports whether the database is not the one, or not as far as the one, that was read before.
func (t *tail) elsewhere(now view.FeedNow) bool {
	return t.epoch != "" && t.epoch != now.Epoch || t.seen != nil && t.seen.Upto >= now.Next || t.last != nil && t.last.Xid >= now.Next
}

// tellSome hands out what is new of jobs and pipelines.
func (t *tail) tellSome(ctx context.Context, jobs, pipelines []int64) error {
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
		// Only under topics that this look knew: whoever has come since has not been told all of it.
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

// tellAll hands out what has come below the horizon.
func (t *tail) tellAll(ctx context.Context) error {
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

// tellNotes hands out how far jobs are, where that has changed, and measures the lag of the feed of all.
func (t *tail) tellNotes(ctx context.Context, jobs, pipelines []int64, all bool) error {
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
			continue // a checkpoint alone
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

// note is how far a job says it is.
type note struct {
	Job string `json:"job"`
	job.Progress
}

// encode gives an event its JSON: that of an export, on one line.
func encode(n view.News) (*event, error) {
	var b bytes.Buffer
	to := json.NewEncoder(&b)
	to.SetEscapeHTML(false)
	if err := to.Encode(n.Event); err != nil {
		return nil, err
	}
	return &event{News: n, data: bytes.TrimSuffix(b.Bytes(), []byte("\n"))}, nil
}
