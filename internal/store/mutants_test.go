//go:build mutants

package store

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/faultnet"
	"github.com/trapeze-run/trapeze/internal/mutant"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

// A mutant that does nothing would be a hole in the net that nobody sees. These tests show that each of those of this
// package is as wrong as it says, and that the check of the history, which every test here ends with, notices the most of
// them by itself. They change the whole process, so they do not run beside others.

// complaints are what a check found, in the place of a test that fails.
type complaints struct {
	testing.TB
	list []string
}

func (c *complaints) Errorf(format string, args ...any) {
	c.list = append(c.list, fmt.Sprintf(format, args...))
}

// newWrongWorld is a world in which the process makes a mistake; the check of its history complains to the one it returns.
func newWrongWorld(t *testing.T, name string) (*world, *complaints) {
	t.Helper()
	s, err := New(t.Context(), pgtest.Pool(t), Options{Connections: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	choose(t, name)
	heard := &complaints{TB: t}
	return &world{Store: s, t: heard, is: is.New(t), pool: s.pool}, heard
}

// choose makes the mistake until the test ends.
func choose(t *testing.T, name string) {
	t.Helper()
	if err := mutant.Set(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mutant.Set("") })
}

// caught checks the history and reports a test error unless the check complains of what is wanted.
func (c *complaints) caught(t *testing.T, w *world, want string) {
	t.Helper()
	w.checkHistory()
	if said := strings.Join(c.list, "\n"); !strings.Contains(said, want) {
		t.Errorf("the check of the history says %q, and nothing of %q", said, want)
	}
}

func TestEveryMutatedStatementPrepares(t *testing.T) {
	is := is.New(t)
	conn, err := pgx.Connect(t.Context(), pgtest.URL(t))
	is.NoErr(err)
	defer conn.Close(t.Context())
	for name, list := range rewrites {
		for _, r := range list {
			from, to := r.texts(name)
			is.True(to != from) // it is another statement
			as, err := conn.Prepare(t.Context(), name+" "+r.name, to)
			if err != nil {
				t.Errorf("%s: %s does not prepare: %v", name, r.name, err)
				continue
			}
			was, err := conn.Prepare(t.Context(), r.name, from)
			is.NoErr(err)
			is.Equal(as.ParamOIDs, was.ParamOIDs) // of the same parameters
		}
	}
}

func TestAMutantChangesItsOwnStatementsOnly(t *testing.T) {
	is := is.New(t)
	for name := range rewrites {
		choose(t, name)
		for _, sql := range statements {
			_, mine := mutants[name][sql]
			is.Equal(mutated(sql) != sql, mine) // what is in its table, and nothing else
		}
	}
	is.NoErr(mutant.Set(""))
	for _, sql := range statements {
		is.Equal(mutated(sql), sql) // and without a choice nothing
	}
}

func TestNoFenceLetsAZombieEndTheJobOfAnother(t *testing.T) {
	w, heard := newWrongWorld(t, mutant.NoFence)
	a, b := w.pod("a"), w.pod("b")
	w.put(plain)
	old := w.one(a)
	w.dies(a, b)
	w.is.Equal(w.one(b).Fence, int64(2))
	_, ok := w.end(a, ending(old))
	w.is.True(ok) // the stale end is accepted
	w.is.Equal(w.at(old.ID).State, job.Succeeded)
	_, ok = w.end(b, ending(Claimed{ID: old.ID, Fence: 2}))
	w.is.True(!ok) // and the owner's is not
	w.is.Equal(w.count(`select count(*) from trapeze.job_event e where e.to_state = 'succeeded' and e.boot = $1`, a), 1)
	w.checkHistory()
	w.is.Equal(len(heard.list), 0) // the fence in the history is the row's: only who knows the pods sees it
}

func TestNoFenceLetsAZombieGiveAwayTheJobOfAnother(t *testing.T) {
	w, _ := newWrongWorld(t, mutant.NoFence)
	a, b := w.pod("a"), w.pod("b")
	w.put(plain, plain, plain)
	old := w.claims(a, 3)
	w.dies(a, b)
	w.is.Equal(len(w.claims(b, 3)), 3)
	back, err := w.HandBack(w.ctx(), a, []job.Lease{leaseOf(a, old[0])}, "late")
	w.is.NoErr(err)
	w.is.True(back[old[0].ID])
	_, err = w.Park(w.ctx(), leaseOf(a, old[1]), time.Hour, Retry{Message: "late"})
	w.is.NoErr(err)
	_, err = w.Hold(w.ctx(), w.pool, leaseOf(a, old[2]), time.Minute)
	w.is.NoErr(err) // and writes under its lease
	w.is.NoErr(w.Progress(w.ctx(), leaseOf(a, old[2]), job.Progress{Done: ptr(int64(1))}))
	w.is.NoErr(w.Emit(w.ctx(), leaseOf(a, old[2]), Emission{Event: "late"}))
}

func TestFenceWithoutPodLetsAZombieEndAJobThatWaits(t *testing.T) {
	w, heard := newWrongWorld(t, mutant.FenceWithoutPod)
	a, b := w.pod("a"), w.pod("b")
	w.put(plain)
	old := w.one(a)
	w.dies(a, b)
	w.is.Equal(w.at(old.ID).State, job.Pending)
	_, ok := w.end(a, ending(old))
	w.is.True(ok) // it was nobody's, and has ended
	heard.caught(t, w, `goes on from "running", the one before ended in "pending"`)
}

func TestFenceWithoutPodStillRefusesAnOldFence(t *testing.T) {
	w, _ := newWrongWorld(t, mutant.FenceWithoutPod)
	a, b := w.pod("a"), w.pod("b")
	w.put(plain)
	old := w.one(a)
	w.dies(a, b)
	w.one(b)
	_, ok := w.end(a, ending(old))
	w.is.True(!ok) // the mistake is as small as it says
}

func TestAnEventGapIsAGap(t *testing.T) {
	w, heard := newWrongWorld(t, mutant.EventGap)
	a, b := w.pod("a"), w.pod("b")
	w.put(plain)
	w.one(a)
	w.dies(a, b)
	w.one(b)
	heard.caught(t, w, "event 4 job.claimed follows event 2")
}

func TestWithoutTheMutexOfASubjectTwoOfItRun(t *testing.T) {
	w, heard := newWrongWorld(t, mutant.SubjectMutexOff)
	a := w.pod("a")
	w.put(about("s"), about("s"))
	w.is.Equal(len(w.claims(a, 5)), 2) // both, though one of them lost the race
	heard.caught(t, w, "running jobs with a subject without their row of current_runs")
}

func TestWithoutTheMutexOfASubjectTwoOfItAreBornRunning(t *testing.T) {
	w, _ := newWrongWorld(t, mutant.SubjectMutexOff)
	a := w.pod("a")
	list := w.new(about("s"), about("s"))
	list[0].Starts, list[1].Starts = true, true
	placed, err := w.Enqueue(w.ctx(), a, list)
	w.is.NoErr(err)
	w.is.Equal(placed[list[0].ID], PlacedRunning)
	w.is.Equal(placed[list[1].ID], PlacedRunning)
}

func TestTheLivingAreCalledLapsed(t *testing.T) {
	w, _ := newWrongWorld(t, mutant.RecoveryOfTheLiving)
	a, b := w.pod("a"), w.pod("b")
	_, err := w.Heartbeat(w.ctx(), a, lease, false)
	w.is.NoErr(err)
	closed, err := w.CloseLapsed(w.ctx(), b, lease, time.Time{})
	w.is.NoErr(err)
	w.is.Equal(len(closed), 1) // it has beaten a moment ago
	w.is.Equal(closed[0].Boot, a)
}

func TestAZombiesHeartbeatOpensItsRow(t *testing.T) {
	w, _ := newWrongWorld(t, mutant.ZombieHeartbeat)
	a, b := w.pod("a"), w.pod("b")
	w.dies(a, b)
	beat, err := w.Heartbeat(w.ctx(), a, lease, false)
	w.is.NoErr(err)
	w.is.True(beat.Open)
	w.put(plain)
	w.one(a) // and it claims as if nothing had been
}

func TestUncountedGrantsAreGivenToEveryPod(t *testing.T) {
	w, _ := newWrongWorld(t, mutant.GrantsUncounted)
	a, b := w.pod("a"), w.pod("b")
	w.put(plain)
	w.exec(`update trapeze.lanes set slots = 2 where name = 'default'`)
	w.is.Equal(w.settle(a, 2, 2, 0).Held, 2)
	w.is.Equal(w.settle(b, 2, 2, 0), Slots{Lane: "default", Held: 2, Share: 1, Work: true}) // as if the first held none
	beat, err := w.Heartbeat(w.ctx(), b, lease, false)
	w.is.NoErr(err)
	w.is.True(beat.Lanes[0].Over) // the mistake is in the grant, and not in the account
}

// The statement is a claim whose reply is lost.
func TestABlindRetryLeavesAClaimThatNobodyKnows(t *testing.T) {
	is := is.New(t)
	choose(t, mutant.BlindCommitRetry)
	url := pgtest.URL(t)
	proxy, err := faultnet.Start(url)
	is.NoErr(err)
	defer proxy.Close()
	cable, err := pgxpool.New(t.Context(), proxy.URL())
	is.NoErr(err)
	defer cable.Close()
	s, err := New(t.Context(), cable, Options{})
	is.NoErr(err)
	defer s.Close()
	w := &world{Store: s, t: t, is: is, pool: pgtest.Connect(t, url)}
	a := w.pod("a")
	w.put(plain)
	cut := proxy.CutReplyOnce(func(b []byte) bool { return strings.Contains(string(b), "claim-me") })
	found, err := w.Claim(w.ctx(), a, []Want{{Lane: "default", N: 1}}, []string{"k", "claim-me"}, true)
	is.NoErr(err) // the second try found nothing, and says so
	is.Equal(len(found.Jobs), 0)
	<-cut
	held, err := w.Held(w.ctx(), a)
	is.NoErr(err)
	is.Equal(len(held), 1) // the first one took it
}
