package host_test

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/remote/internal/host"
	"github.com/trapeze-run/trapeze/runner"
)

// often sets short intervals so that changes reach the other pods quickly.
var often = runner.Options{LeaseDuration: 2 * time.Second, HeartbeatInterval: 100 * time.Millisecond}

func TestRemoteWorkerLimitedLaneSlots(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	pgtest.Exec(t, pool, `insert into trapeze.lanes (name, slots) values ('gpu', 2)`)
	first, second := podtest.Start(t, pool, often, noKinds), podtest.Start(t, pool, often, noKinds)
	w := newFar()
	w.connect(t, first, 1, "far")
	stop := w.keepBeating(t, first)
	foreign(t, first, podtest.RawArgs("far"), runner.Lane("gpu"))
	_, err := w.reports(t, first, w.takes(t, first), nil, nil)
	is.NoErr(err)
	stop()
	pgtest.Exec(t, pool, `update trapeze.slot_grants set asked = asked + 1000000`) // as if the first pod had been running, and requesting slots, for a long time
	w.cut()
	w.connect(t, second, 1, "far")
	w.keepBeating(t, second)
	foreign(t, first, podtest.RawArgs("far"), runner.Lane("gpu"))
	_, err = w.reports(t, second, w.takes(t, second), nil, nil)
	is.NoErr(err)
}

func TestStoppingRemoteWorkerUnusedSlots(t *testing.T) {
	is := is.New(t)
	pool := pgtest.Pool(t)
	pgtest.Exec(t, pool, `insert into trapeze.lanes (name, slots) values ('gpu', 2)`)
	r := podtest.Start(t, pool, often, noKinds)
	w, other := newFar(), newFar()
	w.connect(t, r, 2, "far")
	w.keepBeating(t, r)
	foreign(t, r, podtest.RawArgs("far"), runner.Lane("gpu"))
	foreign(t, r, podtest.RawArgs("far"), runner.Lane("gpu"))
	a, b := w.takes(t, r), w.takes(t, r)
	list := []host.Listed{{Claim: claimOf(a)}, {Claim: claimOf(b)}}
	_, err := hostOf(r).Heartbeat(t.Context(), w.id, owner, host.Beat{Running: list, Draining: true})
	is.NoErr(err)
	_, err = w.reports(t, r, a, nil, nil)
	is.NoErr(err)
	other.connect(t, r, 2, "far")
	other.keepBeating(t, r)
	id := foreign(t, r, podtest.RawArgs("far"), runner.Lane("gpu"))
	is.Equal(other.takes(t, r).ID, id) // while the first worker finishes its last job
}
