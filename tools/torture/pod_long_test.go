//go:build long

package torture

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// until waits up to 30 seconds for a condition.
func until(t *testing.T, what string, met func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !met(); pause(t.Context(), 10*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting: %s", what)
		}
	}
}

func TestTorturePodRestart(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	w, err := NewWorld(t.Context(), Options{Seed: 2, Pods: 1, Workers: -1, Dir: filepath.Join(t.TempDir(), "2")})
	is.NoErr(err)
	defer func() { is.NoErr(w.Close()) }()
	is.NoErr(w.startPods(t.Context()))
	p := w.Pods()[0]
	isReady := func() bool { return p.URL() != "" }
	is.True(isReady())
	first, pid := p.PodID(), p.PID()
	is.True(first != "")
	is.NoErr(p.Start(t.Context())) // the process is already running
	is.Equal(p.PID(), pid)

	is.NoErr(p.Kill())
	is.Equal(p.PID(), 0)             // Kill waited until the process had exited
	is.Equal(p.Kill(), ErrNoProcess) // there is nothing left to kill
	until(t, "the next process", isReady)
	is.True(p.PodID() != first) // a new process has a new pod ID

	release := p.HoldDown()
	is.NoErr(p.Signal(syscall.SIGSTOP))
	is.NoErr(p.Signal(syscall.SIGTERM))
	is.NoErr(p.Signal(syscall.SIGTERM))
	is.NoErr(p.Signal(syscall.SIGCONT))
	is.NoErr(p.WaitExit(t.Context()))
	pause(t.Context(), restartAfter+500*time.Millisecond)
	is.Equal(p.PID(), 0) // no process starts while the place is held down
	is.NoErr(p.Start(t.Context(), "TRAPEZE_FAILPOINTS=heartbeat.send=exit:7"))
	is.NoErr(p.WaitExit(t.Context()))
	release()
	release() // a second call has no effect
	until(t, "the next process", isReady)
	files, memory := openFiles(p.PID()), residentBytes(p.PID())
	is.True(files > 5)
	is.True(memory > 1<<20)
	is.NoErr(p.Kill())

	lives, err := history.ReadLines[history.Process](filepath.Join(w.Dir, history.PodsFile))
	is.NoErr(err)
	is.Equal(len(lives), 4)
	killed, ended, exited := lives[0], lives[1], lives[2]
	is.Equal(killed.Signal, "killed")
	is.Equal(killed.Exit, -1)
	is.Equal(killed.StoppedBy, byASignal)
	is.Equal(killed.PodIDs, []string{first})
	is.Equal(ended.Exit, 0)
	is.Equal(ended.TermsGot, 2)
	is.True(ended.TermAt != nil)
	is.Equal(exited.Exit, 7)
	is.Equal(exited.StoppedBy, byAFailpoint)
	is.Equal(exited.Fired, []string{"heartbeat.send: exit:7"})
	for _, one := range lives {
		log, err := os.ReadFile(filepath.Join(w.Dir, one.Log))
		is.NoErr(err)
		is.True(len(log) > 0) // its log is kept
	}
}

func TestACloseLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	w, err := NewWorld(ctx, Options{Seed: 2, Pods: 1, Workers: 1, Dir: filepath.Join(t.TempDir(), "2")})
	is.NoErr(err)
	is.NoErr(w.startPods(ctx))
	pod, worker, server, home, program := w.Pods()[0].PID(), w.Workers()[0].PID(), w.Server().PID(), w.Server().Dir(), w.binary
	is.NoErr(w.Pods()[0].Signal(syscall.SIGSTOP)) // frozen, as a fault may leave it
	is.NoErr(w.Workers()[0].Signal(syscall.SIGSTOP))
	is.NoErr(syscall.Kill(w.Server().PID(), syscall.SIGSTOP))
	cancel()
	is.NoErr(w.Close())
	for _, pid := range []int{pod, worker, server} {
		is.Equal(syscall.Kill(pid, 0), syscall.ESRCH) // the process is gone
	}
	for _, path := range []string{home, program} {
		_, err := os.Stat(path)
		is.True(os.IsNotExist(err)) // the folder or file was removed
	}
}
