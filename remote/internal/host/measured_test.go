package host

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/engine"
	"github.com/trapeze-run/trapeze/internal/identity"
	"github.com/trapeze-run/trapeze/internal/pod"
	"github.com/trapeze-run/trapeze/internal/telemetry"
	"github.com/trapeze-run/trapeze/poller"
)

func TestWorkerKindMetricsBound(t *testing.T) {
	is := is.New(t)
	var s Host
	m := telemetry.New()
	for i := range 3 * telemetry.MaxKindLabels {
		s.ran(m, "kind-"+strconv.Itoa(i), 1)
	}
	is.Equal(m.RunSeconds.Len(), telemetry.MaxKindLabels+1) // the number of labels is limited regardless of the number of kinds
}

// polls signals each poll of a poller.
type polls chan struct{}

func (s polls) Poll(context.Context) bool { s <- struct{}{}; return false }
func (s polls) NextDue() time.Time        { return time.Time{} }

func TestSharedMarksOfRemoteWorkers(t *testing.T) {
	t.Parallel()
	host := &Host{pod: &pod.Pod{Engine: engine.New(identity.Services{}, identity.Options{PollInterval: time.Minute}, nil)}}
	session := func(id string, kinds ...string) (*Session, polls) {
		g, swept := &Session{host: host, opts: Options{ID: id}}, make(polls)
		g.engine = engine.New(identity.Services{}, identity.Options{PodID: id, PollInterval: sessionPollInterval}, member{g})
		g.engine.Handle(kinds)
		g.engine.Marks, g.engine.Timer = host.marksFor(kinds), poller.NewTimer(swept, time.Hour)
		host.add(g)
		go g.engine.Timer.Run(t.Context())
		<-swept // the first poll
		return g, swept
	}
	one, _ := session("1", "a", "b")
	same, swept := session("2", "a", "b")
	other, _ := session("3", "a")
	if one.engine.Marks != same.engine.Marks || one.engine.Marks == other.engine.Marks {
		t.Error("low-water marks must be shared exactly by the sessions with the same kinds")
	}
	most, wake := one.engine.Member.MarkLimit()
	if most != time.Minute {
		t.Errorf("the marks are valid for at most %s", most)
	}
	wake()
	select {
	case <-swept:
	case <-time.After(10 * time.Second):
		t.Error("an expired mark does not wake the other session that shares it")
	}
}
