package faults

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/temporal"
)

// world is a database with a Temporal lane, a Temporal server, and pods. The server and each pod run in separate processes.
type world struct {
	*testing.T
	is     *is.I
	url    string
	pool   *pgxpool.Pool
	server *process
	role   role           // the pods' role
	client *runner.Runner // submits jobs but never runs them
	pods   []*process
	first  []int64 // the first job of each submitted pipeline
}

// newWorld prepares a database whose default lane uses the given engine, and starts a Temporal server.
func newWorld(t *testing.T, engine string) *world {
	t.Helper()
	url := pgtest.URL(t)
	w := &world{T: t, is: is.New(t), url: url, pool: pgtest.Connect(t, url)}
	pgtest.Exec(t, w.pool, ledgerSQL)
	pgtest.Exec(t, w.pool, `update trapeze.lanes set engine = $1`, engine)
	w.is.NoErr(handlers.Setup(t.Context(), w.pool, flights))
	var err error
	w.client, err = runner.New(w.pool, runner.Options{PodName: "client", Logger: slog.New(slog.DiscardHandler)})
	w.is.NoErr(err)
	t.Cleanup(w.client.Close)
	register(w.client, w.pool)
	w.is.NoErr(handlers.Register(w.client, w.pool, flights))
	w.role = role{URL: url, Prefix: "faults"}
	if engine == temporal.Name {
		ports, err := freePorts(1)
		w.is.NoErr(err)
		w.role.Server = Options{File: filepath.Join(t.TempDir(), "temporal.db"), Port: ports[0]}
		w.role.Temporal = fmt.Sprintf("%s:%d", loopback, ports[0])
		w.startServer()
	}
	return w
}

// startServer starts the Temporal server with its data file and waits until the server responds.
func (w *world) startServer() {
	w.Helper()
	w.server = w.launch("server", role{Server: w.role.Server}, "")
	w.wait("the server responds", func() bool {
		if !w.server.alive() {
			w.Fatal("the server has ended")
		}
		return w.server.log.Count(ready) > 0
	})
}

// start starts a pod with the given failpoints and waits until it has registered.
func (w *world) start(name, failpoints string) *process {
	w.Helper()
	r := w.role
	r.Pod = name
	p := w.launch(name, r, failpoints)
	w.pods = append(w.pods, p)
	w.wait(name+" has registered", func() bool {
		if !p.alive() {
			w.Fatal(name + " has ended")
		}
		return pgtest.QueryOne[bool](w, w.pool, `select exists (select from trapeze.pods where name = $1 and closed_at is null)`, name)
	})
	return p
}

// process is a pod or a server.
type process struct {
	w     *world
	name  string
	cmd   *exec.Cmd
	log   podtest.Log
	ended chan struct{}
}

// launch starts the test binary in a role. The process ends with the test.
func (w *world) launch(name string, r role, failpoints string) *process {
	w.Helper()
	text, err := json.Marshal(r)
	w.is.NoErr(err)
	self, err := os.Executable()
	w.is.NoErr(err)
	p := &process{w: w, name: name, cmd: exec.Command(self), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), roleEnv+"="+string(text), "TRAPEZE_FAILPOINTS="+failpoints)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	stdin, err := p.cmd.StdinPipe()
	w.is.NoErr(err)
	w.is.NoErr(p.cmd.Start())
	go func() { _ = p.cmd.Wait(); close(p.ended) }()
	w.Cleanup(func() {
		p.kill()
		_ = stdin.Close()
		if w.Failed() {
			text := p.log.String()
			w.Logf("%s (%s):\n%s", name, p.cmd.ProcessState, text[max(0, len(text)-4000):])
		}
	})
	return p
}

// kill sends SIGKILL to the process and returns once the process is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL) // fails if the process has already exited
	<-p.ended
}

// alive reports whether the process is running.
func (p *process) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// waitKilled waits until the process has killed itself at a failpoint.
func (p *process) waitKilled() {
	p.w.Helper()
	p.w.wait(p.name+" has died", func() bool { return !p.alive() })
}

// within limits each wait. If a worker dies during a workflow task, Temporal takes ten seconds to notice.
const within = 3 * time.Minute

func (w *world) wait(what string, cond func() bool) {
	w.Helper()
	pgtest.WaitFor(w.T, within, what, cond)
}

func (w *world) submit(args runner.Args, options ...runner.EnqueueOption) {
	w.Helper()
	w.first = append(w.first, podtest.Enqueue(w.T, w.client, args, options...))
}

// load submits n rounds of jobs.
func (w *world) load(n, millis int) {
	w.Helper()
	for i := range n {
		w.submit(work{i, millis})
		w.submit(work{i, millis}, runner.Subject(fmt.Sprint("subject ", i%2)))
		w.submit(link{1, 4, millis})
		w.submit(flaky{i})
		w.submit(split{5, millis})
	}
}

// endedJobs returns the number of jobs that have ended.
func (w *world) endedJobs() int {
	w.Helper()
	return pgtest.QueryOne[int](w, w.pool, `select count(*) from trapeze.done`)
}

// handedOver makes a job due again immediately if its start has not been recorded, as if its forwarder had died half a minute ago.
func (w *world) handedOver() {
	w.Helper()
	pgtest.Exec(w, w.pool, `update trapeze.outbox set seen_at = seen_at - interval '30 seconds' where run is null`)
}

// finish waits until all work is done and checks that each job ended once.
func (w *world) finish() {
	w.Helper()
	w.wait("every job has ended", func() bool {
		w.handedOver()
		return pgtest.QueryOne[int](w, w.pool, `select (select count(*) from trapeze.live) + (select count(*) from trapeze.parked)`) == 0
	})
	podtest.CheckHistory(w, w.pool, w.client)
	for _, id := range w.first {
		p, err := w.client.Admin("").Pipeline(w.Context(), id)
		w.is.NoErr(err)
		w.is.Equal(p.Status, job.PipelineSucceeded)
	}
	wrong := pgtest.Column[string](w, w.pool, `
		select format('job %s was called %s times with fence %s', job, count(*), fence) from starts group by job, fence having count(*) > 1
		union all
		select format('job %s (%s) has succeeded with the effect of fence %s; its last fence is %s', d.id, j.kind, e.fence, s.fence)
		from trapeze.done d join trapeze.jobs j using (id) left join effects e on e.job = d.id
			cross join lateral (select max(fence) as fence from starts where job = d.id) s
		where j.kind = any('{work,flaky,link,split,total}') and d.state = 'succeeded' and e.fence is distinct from s.fence`)
	for _, text := range wrong {
		w.Error(text)
	}
	w.Logf("%d jobs ended after %d calls of handlers, %d crashes", w.endedJobs(), pgtest.QueryOne[int](w, w.pool, `select count(*) from starts`),
		pgtest.QueryOne[int](w, w.pool, `select coalesce(sum(crashes), 0) from trapeze.done`))
}
