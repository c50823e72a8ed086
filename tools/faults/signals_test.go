package faults

import (
	"syscall"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// takeoverWithin limits how long other pods may take to start the jobs of a dead pod.
const takeoverWithin = leaseDuration + pollInterval + 10*time.Second

func TestPodFrozenBeyondLease(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	w := newWorld(t, pgtest.URL(t))
	frozen := w.start(podConfig{Name: "frozen", Slots: 12}, "")
	for range 4 {
		w.submit(nap{Millis: 60_000, Once: true})
		w.submit(link{Of: chainLength, Millis: 600})
		w.submit(batch{Rows: 20, Millis: 200})
	}
	frozen.waitRunning(8) // not 12, because on a slow machine, some batches finish before the last job starts
	w.start(podConfig{Name: "other", Slots: 12}, "")
	stop := w.load(1, 200*time.Millisecond)
	frozen.signal(syscall.SIGSTOP)
	frozen.waitLapsed()
	pgtest.Wait(t, "the other one has them all", func() bool {
		return w.yes("select count(*) = 0 from trapeze.live l join trapeze.pods p on p.id = l.pod where p.name = 'frozen'")
	})
	woken := w.now()
	frozen.signal(syscall.SIGCONT)
	frozen.waitOpen() // the pod registered again under a new pod ID
	const refusedSQL = `select count(*) >= 4 from starts where at > $1 and what like 'lease lost%'`
	pgtest.Wait(t, "its handlers were told that the lease is lost", func() bool { return w.yes(refusedSQL, woken) })
	stop()
	h := w.finish()
	is.True(h.counts["job.recovered"] >= 8)                                              // the pod's running jobs were taken over
	is.True(frozen.log.says("result discarded"))                                         // its late results were discarded
	is.True(frozen.log.says("lease lost: the pod lapsed"))                               // it noticed that its lease was lost
	is.Equal(w.yes("select count(*) = 2 from trapeze.pods where name = 'frozen'"), true) // one pod ID from before the freeze and one from after it
}

func TestKilledPodTakeover(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	const jobs = 20
	w := newWorld(t, pgtest.URL(t))
	victim := w.start(podConfig{Name: "victim", Slots: jobs}, "")
	for range jobs {
		w.submit(nap{Millis: 60_000, Once: true})
	}
	victim.waitRunning(jobs)
	w.start(podConfig{Name: "heir-1", Slots: jobs}, "")
	w.start(podConfig{Name: "heir-2", Slots: jobs}, "")
	died := w.now()
	victim.kill()
	h := w.finish()
	is.Equal(h.counts["job.recovered"], jobs)
	for _, events := range h.events {
		for _, e := range events {
			if e.Event == "job.claimed" && *e.Fence == 2 {
				is.True(e.At.Sub(died) < takeoverWithin) // the job started elsewhere in time
			}
		}
	}
	is.Equal(h.counts["job.claimed"], 2*jobs) // each job was claimed once by each of the two pods
}

func TestAPodThatIsToldToStopHandsItsJobsBackUnspent(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	w := newWorld(t, pgtest.URL(t))
	leaving := w.start(podConfig{Name: "leaving", Defaults: true}, "") // the default lease does not expire on a busy machine
	for range 5 {
		w.submit(nap{Millis: 60_000, Once: true})
	}
	w.submit(nap{Millis: 60_000, Once: true, IgnoreContext: true}) // a handler that ignores the cancellation of its context
	w.submit(link{Of: chainLength, Millis: 300})
	leaving.waitRunning(7)
	leaving.signal(syscall.SIGTERM)
	state := leaving.waitExit(t, shutdownGrace+3*time.Second)
	is.Equal(state.ExitCode(), 0) // the pod exits normally after the drain
	is.True(w.yes("select not exists (select from trapeze.live where state = 'running')"))
	is.True(w.yes("select closed = 'left' from trapeze.pods where name = 'leaving'"))
	w.start(podConfig{Name: "heir"}, "")
	h := w.finish()
	is.True(h.counts["job.handed_back"] >= 6) // at least the naps
	is.Equal(h.counts["job.recovered"], 0)    // no jobs needed recovery
	for _, r := range h.jobs {
		is.Equal(r.Attempt, 1) // no attempt was used up
		is.Equal(r.Crashes, 0) // no crash was counted
	}
}

func TestSecondSignalDuringGrace(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	w := newWorld(t, pgtest.URL(t))
	hurried := w.start(podConfig{Name: "hurried", Grace: time.Minute, Defaults: true}, "")
	for range 5 {
		w.submit(nap{Millis: 60_000, Once: true})
	}
	hurried.waitRunning(5)
	hurried.signal(syscall.SIGTERM)
	pgtest.Wait(t, "it drains", func() bool { return hurried.log.says("runner draining") })
	hurried.signal(syscall.SIGTERM)
	is.Equal(hurried.waitExit(t, 3*time.Second).ExitCode(), 0)
	w.start(podConfig{Name: "heir"}, "")
	h := w.finish()
	is.Equal(h.counts["job.handed_back"], 5) // all jobs are handed back immediately
	is.Equal(h.counts["job.recovered"], 0)
}
