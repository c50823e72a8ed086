package poller

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/identity"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/slots"
	"github.com/trapeze-run/trapeze/internal/store"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// wakes is a Member that counts wake-ups.
type wakes struct {
	Member
	n chan struct{}
}

func (w wakes) MarkLimit() (time.Duration, func()) {
	return time.Minute, func() { w.n <- struct{}{} }
}

// A claim starts at an expired mark instead of waiting for the mark to be reread. After the read, the engine is woken for jobs that the
// mark has hidden. A failed read does not wake the engine, because the next read would fail immediately.
func TestClaimDuringExpiredMarkRead(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	st, err := store.New(t.Context(), pgtest.Pool(t), store.Options{Connections: 1, StatementTimeout: time.Minute})
	is.NoErr(err)
	defer st.Close()
	woken := make(chan struct{}, 1)
	i := &identity.Identity{Services: identity.Services{Store: st, Log: slog.New(slog.DiscardHandler)}, Lanes: slots.NewLanes(1, nil), Marks: &slots.Marks{}}
	i.Lanes.Apply(store.Beat{Lanes: []store.Lane{{Name: "default", Enabled: true}}})
	p := &Poller{Identity: i, member: wakes{n: woken}}
	mark := time.Now()
	expire := func() {
		expired := make(chan struct{})
		i.Marks.Apply(map[string][]store.Mark{"default": {{Rank: -10, Since: mark}}}, nil, time.Second, 20*time.Millisecond, func() { close(expired) })
		i.Marks.ForSubmission("default") // only marks that have been used are reread
		<-expired
	}
	marked := func() bool { // a slow machine may leave another mark after the read
		return slices.ContainsFunc(i.Marks.ForClaim("default"), func(m store.Mark) bool { return m.Since.Equal(mark) })
	}

	expire()
	busy, err := st.Pool().Acquire(t.Context()) // the read must wait for the only connection
	is.NoErr(err)
	defer busy.Release()
	p.renewMarks(t.Context())
	is.True(marked())
	is.Equal(len(woken), 0)
	busy.Release()
	p.renewing.Wait()
	is.True(!marked()) // the lane was read
	<-woken

	i.Marks = &slots.Marks{}
	expire()
	st.Close()
	p.renewMarks(t.Context())
	p.renewing.Wait()
	is.True(!marked()) // the next claim reads everything
	is.Equal(len(woken), 0)
}
