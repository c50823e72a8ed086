//go:build long

package e2e

import (
	"fmt"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/faultnet"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

// behindNetwork starts a proxy that simulates the network in front of a pod. It returns the proxy and the URL of the pod behind it. The
// pod's URL is rewritten because faultnet accepts only PostgreSQL URLs.
func behindNetwork(t *testing.T, p *pod) (*faultnet.Proxy, string) {
	t.Helper()
	is := is.New(t)
	proxy, err := faultnet.Start(strings.Replace(p.HTTP, "http://", "postgres://nobody:none@", 1) + "/none?sslmode=disable")
	is.NoErr(err)
	t.Cleanup(proxy.Close)
	at, err := url.Parse(proxy.URL())
	is.NoErr(err)
	return proxy, "http://" + at.Host
}

// The queue state is stored in the database, so it applies to the workers of all pods, including pods that start later.
func TestPausedQueueAcrossWorkerPods(t *testing.T) {
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	first, second := dispatcher(t, db), dispatcher(t, db)
	startFar(t, first.HTTP, "TRAPEZE_POD_NAME=one")
	pgtest.Wait(t, "the first worker is accepted", func() bool { return db.stream("one") > 0 })
	runs := db.enqueue("demo.sleep", "--args", `{"ms":5000}`)
	db.inState(runs, job.Running) // on the first pod's worker, because the second pod is stopped below
	startFar(t, second.HTTP, "TRAPEZE_POD_NAME=two")
	pgtest.Wait(t, "the second worker is accepted", func() bool { return db.stream("two") > 0 })
	db.ok("pause")
	db.heard()
	var waiting []string
	for range 4 {
		waiting = append(waiting, db.enqueue("demo.sleep", "--args", `{"ms":1}`))
	}
	second.signal(syscall.SIGTERM)
	is.Equal(second.end(), cli.CodeOK)
	third := dispatcher(t, db)
	startFar(t, third.HTTP, "TRAPEZE_POD_NAME=three")
	pgtest.Wait(t, "the new worker is accepted", func() bool { return db.stream("three") > 0 })
	is.Equal(db.inState(runs, job.Succeeded).Fence, int64(1)) // a running job continues
	for _, id := range waiting {
		is.Equal(db.job(id).State, job.Pending) // several polls have passed by now
		is.Equal(db.job(id).Fence, int64(0))
	}
	db.ok("resume")
	for _, id := range waiting {
		db.inState(id, job.Succeeded)
	}
}

// A short database outage ends no stream, and a broken connection ends only its own stream. A stuck worker holds no more jobs than it has
// slots, and other workers run the rest.
func TestTroubleOnSingleStream(t *testing.T) {
	is := is.New(t)
	direct := database{t, pgtest.URL(t)}
	between, err := faultnet.Start(direct.url)
	is.NoErr(err)
	defer between.Close()
	p := serve(t, between.URL(), []string{"TRAPEZE_KINDS=demo.noop", "TRAPEZE_LEASE_DURATION=6s", "TRAPEZE_HEARTBEAT_INTERVAL=300ms"})
	slow, address := behindNetwork(t, p)
	startFar(t, address, "TRAPEZE_POD_NAME=slow")
	startFar(t, p.HTTP, "TRAPEZE_POD_NAME=well", "TRAPEZE_KINDS=demo.sleep,demo.echo")
	pgtest.Wait(t, "both workers are accepted", func() bool { return direct.stream("slow") == 1 && direct.stream("well") == 1 })

	var held []string
	for range 6 {
		held = append(held, direct.enqueue("demo.sleep", "--args", `{"ms":1200}`))
	}
	pool := pgtest.Connect(t, direct.url)
	most := 0
	pgtest.Wait(t, "all have ended", func() bool {
		var n, left int
		is.NoErr(pool.QueryRow(t.Context(), `select coalesce(max(n), 0), coalesce(sum(n), 0) from (select count(*) as n from trapeze.live where state = 'running' group by pod) x`).Scan(&n, &left))
		most = max(most, n)
		return left == 0 && direct.job(held[5]).State == job.Succeeded && direct.job(held[4]).State == job.Succeeded
	})
	is.True(most <= 2) // no worker received more jobs than it has slots
	for _, id := range held {
		is.Equal(direct.inState(id, job.Succeeded).Fence, int64(1)) // each job went to a single worker
	}

	between.Refuse()
	between.Reset()
	id := direct.enqueue("demo.echo")
	pgtest.Wait(t, "polls fail", func() bool { return strings.Contains(p.log.String(), "err=") })
	between.Pass()
	direct.inState(id, job.Succeeded)
	is.Equal(direct.stream("well"), 1) // the stream was not reopened

	slow.Blackhole()
	var after []string
	for range 6 {
		after = append(after, direct.enqueue("demo.sleep", "--args", `{"ms":1}`))
	}
	for _, id := range after {
		is.True(direct.inState(id, job.Succeeded).Attempt == 1) // lost assignments do not count as attempts
	}
	is.Equal(direct.stream("well"), 1)
	slow.Pass()
	pgtest.Wait(t, "the other worker reconnects", func() bool { return direct.stream("slow") > 0 })
	direct.inState(direct.enqueue("demo.sleep", "--args", `{"ms":1}`), job.Succeeded)
}

// A worker receives only jobs of the kinds that it requests, or of every kind that it has registered if it requests none. A retried job
// keeps its lane, arguments and priority.
func TestRemoteWorkerRequestedKinds(t *testing.T) {
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	p := dispatcher(t, db, "TRAPEZE_LANES=narrow=2")
	startFar(t, p.HTTP, "TRAPEZE_KINDS=demo.sleep")
	other := db.enqueue("demo.echo", "--args", `{"n":1}`, "--priority", "50")
	for range 3 {
		db.inState(db.enqueue("demo.sleep", "--args", `{"ms":1}`), job.Succeeded)
	}
	is.Equal(db.job(other).State, job.Pending) // the job is more urgent, but the worker did not request its kind
	failing := db.enqueue("demo.fail", "--args", `{"message":"again"}`, "--max-attempts", "2", "--lane", "narrow", "--priority", "7")
	startFar(t, p.HTTP)
	db.inState(other, job.Succeeded)
	j := db.inState(failing, job.Failed)
	is.Equal(fmt.Sprintf("%d %d %s %d %s", j.Attempt, j.Fence, j.Lane, j.Priority, j.Args), `2 2 narrow 7 {"message":"again"}`)
	db.ok("retry", failing)
	db.until(failing, "runs again, as a dead letter that was put back", func(now job.JobRow) bool { return now.Epoch > j.Epoch && now.State == job.Failed })
	is.Equal(db.job(failing).Lane, "narrow")

	// A million progress reports cause only a few writes.
	began := time.Now()
	id := db.enqueue("demo.progress", "--args", `{"steps":1000000,"ms":0}`)
	db.inState(id, job.Succeeded)
	var n float64
	is.NoErr(pgtest.Connect(t, db.url).QueryRow(t.Context(), `select count(*) from trapeze.job_event where job = $1`, id).Scan(&n))
	is.True(n < 20+20*time.Since(began).Seconds())
}

// stream returns the latest stream number of the open worker with the given name, or 0 if there is none.
func (d database) stream(name string) (n int) {
	d.t.Helper()
	if err := d.store().Pool().QueryRow(d.t.Context(), `select coalesce(max(stream), 0) from trapeze.pods p join trapeze.remote_workers w on w.pod = p.id where name = $1 and closed_at is null`, name).Scan(&n); err != nil {
		d.t.Fatal(err)
	}
	return n
}
