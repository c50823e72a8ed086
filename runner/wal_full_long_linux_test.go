//go:build long

package runner_test

import (
	"context"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// logOnSmallDisk moves a stopped server's write-ahead log to a new 96 MiB file system and returns its mount point.
func logOnSmallDisk(t *testing.T, server *pgtest.Node) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: a small file system is mounted for the write-ahead log")
	}
	wal := filepath.Join(server.Dir(), "pgdata", "pg_wal")
	info, err := os.Stat(wal)
	if err != nil {
		t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	small := filepath.Join(server.Dir(), "small")
	if err := os.Mkdir(small, 0o700); err != nil {
		t.Fatal(err)
	}
	options := fmt.Sprintf("size=96m,mode=0700,uid=%d,gid=%d", owner.Uid, owner.Gid)
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, options); err != nil {
		t.Skipf("cannot mount a file system here: %v", err)
	}
	t.Cleanup(func() {
		server.Halt(t)
		_ = syscall.Unmount(small, syscall.MNT_DETACH)
	})
	for _, command := range [][]string{{"cp", "-a", wal, small}, {"rm", "-r", wal}, {"ln", "-s", filepath.Join(small, "pg_wal"), wal}} {
		if out, err := osexec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", command, err, out)
		}
	}
	return small
}

// fill uses up all space on the file system that contains folder. free releases it.
func fill(t *testing.T, folder string) (free func()) {
	t.Helper()
	filler, err := os.Create(filepath.Join(folder, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.CopyN(filler, zeroes{}, 1<<30) // fails when the disk is full
	_ = filler.Close()
	return func() { _ = os.Remove(filler.Name()) }
}

type zeroes struct{}

func (zeroes) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// PostgreSQL panics if it cannot write its log, and cannot restart until there is free space. After the restart, no confirmed job has been
// lost, and the pod continues by itself.
func TestFullWALDisk(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	server := pgtest.Primary(t, "max_wal_size", "32MB", "min_wal_size", "32MB", "wal_keep_size", "0", "fsync", "on")
	pgtest.Migrate(t, server.URL())
	server.Exec(t, `create table effects (job bigint); create table ballast (t text)`)
	server.Halt(t)
	folder := logOnSmallDisk(t, server)
	server.Start(t)

	r := start(t, pgtest.Connect(t, server.URL()), runner.Options{LeaseDuration: 3 * time.Second}, map[string]handler{
		"k": func(_ context.Context, j *raw) (*runner.Outcome, error) {
			return runner.Done(nil).InTx(func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `insert into effects values ($1)`, j.ID())
				return err
			}), nil
		},
	})
	free := fill(t, folder)
	confirmed := map[int64]bool{}
	submit := func(n int) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if made, err := r.Enqueue(ctx, rawArgs("k"), runner.IdempotencyKey(fmt.Sprint("job ", n))); err == nil {
			confirmed[made.ID] = true
		}
	}
	// The server first fills the log segments that already exist.
	n := 0
	pgtest.WaitFor(t, time.Minute, "the server has stopped", func() bool {
		submit(n)
		n++
		if conn, err := pgx.Connect(t.Context(), server.URL()); err == nil {
			_, _ = conn.Exec(t.Context(), `insert into ballast select repeat(md5(i::text), 50) from generate_series(1, 5000) i`)
			_ = conn.Close(t.Context())
		}
		return len(server.PIDs()) == 0
	})
	is.True(len(confirmed) > 0)
	submit(n) // fails while the server is down
	before := len(confirmed)
	free()
	server.Start(t)
	pgtest.WaitFor(t, time.Minute, "submissions are confirmed again", func() bool {
		n++
		submit(n)
		return len(confirmed) > before
	})
	for id := range confirmed {
		inState(t, r, id, job.Succeeded)
	}
	pool := pgtest.Connect(t, server.URL())
	quiet(t, pool)
	is.Equal(queryOne[int](t, pool, `select count(*) - count(distinct job) from effects`), 0) // no job took effect twice
	is.Equal(queryOne[int](t, pool, `select count(*) from trapeze.jobs where id not in (select job from effects)`), 0)
}
