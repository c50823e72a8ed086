package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/job"
)

// far is a remote worker process, which has no database.
type far struct {
	t     *testing.T
	cmd   *exec.Cmd
	log   *podtest.Log
	ended chan struct{} // closed when the process has exited
}

func startFar(t *testing.T, server string, env ...string) *far {
	t.Helper()
	return startFarWith(t, server, nil, env...)
}

func startFarWith(t *testing.T, server string, flags []string, env ...string) *far {
	t.Helper()
	w := &far{t: t, cmd: exec.Command(os.Args[0], append([]string{"worker", "--server", server}, flags...)...), log: &podtest.Log{}, ended: make(chan struct{})}
	w.cmd.Env, w.cmd.Stderr = environment(append([]string{"TRAPEZE_DEMO_HANDLERS=true", "TRAPEZE_SLOTS=2"}, env...)...), w.log
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = w.cmd.Wait()
		close(w.ended)
	}()
	t.Cleanup(func() {
		_ = w.cmd.Process.Signal(syscall.SIGCONT)
		_ = w.cmd.Process.Kill()
		<-w.ended
		if t.Failed() {
			t.Logf("the log of %s:\n%s", server, w.log)
		}
	})
	return w
}

func (w *far) signal(s syscall.Signal) {
	w.t.Helper()
	if err := w.cmd.Process.Signal(s); err != nil {
		w.t.Fatal(err)
	}
}

func (w *far) end() int {
	w.t.Helper()
	select {
	case <-w.ended:
		return w.cmd.ProcessState.ExitCode()
	case <-time.After(30 * time.Second):
		w.t.Fatal("the worker did not end within 30 s")
		return -1
	}
}

// dispatcher starts a pod that runs only the demo kind noop, leaving all other kinds to remote workers.
func dispatcher(t *testing.T, db database, env ...string) *pod {
	return serve(t, db.url, append([]string{"TRAPEZE_KINDS=demo.noop", fmt.Sprint("TRAPEZE_LEASE_DURATION=", 2*slow, "s"), fmt.Sprint("TRAPEZE_HEARTBEAT_INTERVAL=", 300*slow, "ms")}, env...))
}

func TestRemoteWorkerTokenAndKinds(t *testing.T) {
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	tokens := filepath.Join(t.TempDir(), "tokens.json")
	is.NoErr(os.WriteFile(tokens, []byte(`{"tokens":[
		{"token":"worker-worker-worker-1","name":"gpu","roles":["worker"],"kinds":["demo.sl*"]},
		{"token":"viewer-viewer-viewer-1","name":"eve","roles":["viewer"]}]}`), 0o600))
	p := dispatcher(t, db, "TRAPEZE_TOKENS_FILE="+tokens)
	for _, token := range []string{"nobody-nobody-nobody-1", "viewer-viewer-viewer-1", "worker-worker-worker-1"} {
		w := startFar(t, p.HTTP, "TRAPEZE_TOKEN="+token)
		is.Equal(w.end(), cli.CodeRefused) // the last token is valid, but not bound to all of the worker's kinds
	}
	startFar(t, p.HTTP, "TRAPEZE_TOKEN=worker-worker-worker-1", "TRAPEZE_KINDS=demo.sleep")
	db.inState(db.enqueue("demo.sleep", "--args", `{"ms":1}`), job.Succeeded)
}

// On a pod, demo.snooze writes its checkpoints in one of two ways, depending on whether the job's ID is even.
func TestDemoJobSnoozeRemoteWorker(t *testing.T) {
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	startFar(t, dispatcher(t, db).HTTP)
	for range 2 {
		j := db.until(db.enqueue("demo.snooze", "--args", `{"times":1,"delay_ms":1}`), "has ended", func(j job.JobRow) bool { return j.State.Terminal() })
		is.Equal(string(j.Result), `{"times":1}`)
	}
}

func TestRemoteWorkerWithoutServerHandlers(t *testing.T) {
	is := is.New(t)
	is.Equal(trapeze(t, []string{"TRAPEZE_DEMO_HANDLERS=true"}, "worker").code, cli.CodeUsage)
	is.Equal(trapeze(t, nil, "worker", "--server", "http://127.0.0.1:1").code, cli.CodeUsage)
	is.Equal(trapeze(t, []string{"TRAPEZE_DEMO_HANDLERS=true"}, "worker", "--server", "http://192.0.2.1").code, cli.CodeUsage) // plain HTTP to another machine is not allowed
}
