package world_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	world "github.com/trapeze-run/trapeze/examples/river"
	"github.com/trapeze-run/trapeze/examples/river/moving"
	"github.com/trapeze-run/trapeze/examples/river/withriver"
	"github.com/trapeze-run/trapeze/examples/river/withtrapeze"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/runner"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// program is the interface that both programs implement.
type program interface {
	SignUp(ctx context.Context, tx pgx.Tx, email string) error
	Import(ctx context.Context, emails []string) error
	Watch(ctx context.Context, parcel string, after time.Duration) (id int64, err error)
	Forget(ctx context.Context, id int64) error
	Bill(ctx context.Context, number string) (id int64, isNew bool, err error)
	Hang(ctx context.Context) error
	Output(ctx context.Context, id int64) (string, error)
	Stop(ctx context.Context) error
}

// database returns a database that contains the tables of River, Trapeze and the program itself.
func database(t *testing.T) *pgxpool.Pool {
	t.Helper()
	is := is.New(t)
	pool := pgtest.Connect(t, pgtest.EmptyURL(t))
	is.NoErr(withriver.Migrate(t.Context(), pool))
	is.NoErr(withtrapeze.Migrate(t.Context(), pool))
	_, err := pool.Exec(t.Context(), `create table ledger (invoice text not null)`)
	is.NoErr(err)
	return pool
}

func TestBothProgramsDoTheSame(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	pool := database(t)
	var ofRiver, ofTrapeze world.World
	r, err := withriver.Start(t.Context(), pool, &ofRiver)
	is.NoErr(err)
	z, err := withtrapeze.Start(t.Context(), pool, &ofTrapeze)
	is.NoErr(err)
	use(t, pool, r, "river")
	use(t, pool, z, "trapeze")

	// The map lists the effects of every kind except heartbeat. The number of heartbeat jobs depends on how long the test takes.
	want := map[string]int{
		"mail to ada": 1, "mail to ben": 1, "mail to cyd": 1, // mail reaches each address on the second attempt, because the mail server is busy at first
		"arrived parcel":        1,                      // after a snooze, which does not count as a failure
		"try of welcome":        7,                      // two attempts for each of three addresses, plus one for "nobody"
		"failed try of welcome": 3,                      // none for "nobody", whose job is cancelled or fails permanently at once
		"try of track":          2, "try of invoice": 1, // submitting the same invoice twice creates one job
		"try of slow": 1, "failed try of slow": 1,
	}
	for name, w := range map[string]*world.World{"River": &ofRiver, "Trapeze": &ofTrapeze} {
		pgtest.Wait(t, name+" has done everything, including a heartbeat job", func() bool {
			did := w.Record()
			for what, n := range want {
				if did[what] < n {
					return false
				}
			}
			return did["beat"] > 0
		})
	}
	is.NoErr(r.Stop(t.Context()))
	is.NoErr(z.Stop(t.Context()))
	for name, w := range map[string]*world.World{"River": &ofRiver, "Trapeze": &ofTrapeze} {
		did := w.Record()
		delete(did, "beat")
		delete(did, "try of beat")
		if fmt.Sprint(did) != fmt.Sprint(want) { // maps are printed in sorted order
			t.Errorf("%s did\n%v, want\n%v", name, did, want)
		}
	}
	var ledger int
	is.NoErr(pool.QueryRow(t.Context(), `select count(*) from ledger`).Scan(&ledger))
	is.Equal(ledger, 2) // one row per invoice
}

// use submits jobs through a program.
func use(t *testing.T, pool *pgxpool.Pool, p program, name string) {
	t.Helper()
	is := is.New(t)
	ctx := t.Context()
	is.NoErr(pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return p.SignUp(ctx, tx, "ada") }))
	tx, err := pool.Begin(ctx)
	is.NoErr(err)
	is.NoErr(p.SignUp(ctx, tx, "eve"))
	is.NoErr(tx.Rollback(ctx)) // because the transaction is rolled back, no mail is sent to eve
	is.NoErr(p.Import(ctx, []string{"ben", "cyd", "nobody"}))
	_, err = p.Watch(ctx, "parcel", 200*time.Millisecond)
	is.NoErr(err)
	lost, err := p.Watch(ctx, "lost", 200*time.Millisecond)
	is.NoErr(err)
	is.NoErr(p.Forget(ctx, lost)) // the job never runs
	is.NoErr(p.Hang(ctx))
	tx, err = pool.Begin(ctx) // while this transaction is open, the first invoice cannot be paid
	is.NoErr(err)
	_, err = tx.Exec(ctx, `lock table ledger in share mode`)
	is.NoErr(err)
	first, isNew, err := p.Bill(ctx, name+"-1")
	is.NoErr(err)
	is.True(isNew)
	second, isNew, err := p.Bill(ctx, name+"-1")
	is.NoErr(err)
	is.True(!isNew) // the first job for this invoice is still running
	is.Equal(first, second)
	is.NoErr(tx.Rollback(ctx))
	output, err := p.Output(ctx, first)
	is.NoErr(err)
	is.Equal(output, `"paid `+name+`-1"`)
}

// River finishes its existing jobs, Trapeze runs the new ones, and River's scheduled jobs are moved to Trapeze.
func TestMigrationFromRiver(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	ctx, pool := t.Context(), database(t)
	var w world.World
	r, err := withriver.Start(ctx, pool, &w)
	is.NoErr(err)
	var old []string
	for i := range 50 {
		old = append(old, fmt.Sprint("old", i))
		_, err := r.Watch(ctx, fmt.Sprint("far", i), time.Hour)
		is.NoErr(err)
	}
	is.NoErr(r.Import(ctx, old))

	z, err := withtrapeze.Start(ctx, pool, &w)
	is.NoErr(err)
	for i := range 50 {
		is.NoErr(pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return z.SignUp(ctx, tx, fmt.Sprint("new", i)) }))
	}
	for total := 0; total < 50; {
		moved, err := moving.Move(ctx, r.Client(), z.Runner())
		is.NoErr(err)
		is.True(moved > 0)
		total += moved
	}
	moved, err := moving.Move(ctx, r.Client(), z.Runner())
	is.NoErr(err)
	is.Equal(moved, 0)
	r.Client().PeriodicJobs().Clear()
	pgtest.Wait(t, "River has no jobs left", func() bool {
		open, err := moving.Open(ctx, r.Client())
		is.NoErr(err)
		return open == 0
	})
	is.NoErr(r.Stop(ctx))
	pgtest.Wait(t, "all new mails are sent", func() bool {
		n := 0
		for what := range w.Record() {
			if strings.HasPrefix(what, "mail to new") {
				n++
			}
		}
		return n == 50
	})
	did := w.Record()
	for i := range 50 {
		is.Equal(did[fmt.Sprint("mail to old", i)], 1) // run by River
		is.Equal(did[fmt.Sprint("mail to new", i)], 1) // run by Trapeze
		is.Equal(did[fmt.Sprint("arrived far", i)], 0) // not due yet
	}
	var later int
	is.NoErr(pool.QueryRow(ctx, `
		select count(*) from trapeze.job
		where kind = 'track' and state = 'pending' and run_after between now() + interval '50 minutes' and now() + interval '61 minutes'`).Scan(&later))
	is.Equal(later, 50) // the due times have not changed
	is.NoErr(z.Stop(ctx))
}

// Any error rolls back the move. Here, the error is a kind without a handler.
func TestFailedMoveFromRiver(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	ctx, pool := t.Context(), database(t)
	var w world.World
	r, err := withriver.Start(ctx, pool, &w)
	is.NoErr(err)
	for i := range 3 {
		_, err := r.Watch(ctx, fmt.Sprint("far", i), time.Hour)
		is.NoErr(err)
	}
	unknowing, err := runner.New(pool, runner.Options{}) // a runner without handlers rejects every kind as unknown
	is.NoErr(err)
	defer unknowing.Close()
	moved, err := moving.Move(ctx, r.Client(), unknowing)
	is.True(err != nil)
	is.Equal(moved, 0)
	var left int
	is.NoErr(pool.QueryRow(ctx, `select count(*) from river_job where state = 'scheduled'`).Scan(&left))
	is.Equal(left, 3)
	is.NoErr(r.Stop(ctx))
}

// The code in the guide must match the programs. The guide's code may be indented less, and an empty line in it stands for any number of
// omitted lines.
func TestRiverGuideCode(t *testing.T) {
	is := is.New(t)
	guide, err := os.ReadFile("../../docs/migrating/river.md")
	is.NoErr(err)
	var source string
	for _, file := range []string{"withriver/program.go", "withtrapeze/program.go", "moving/moving.go", "withriver/program_test.go", "withtrapeze/program_test.go"} {
		text, err := os.ReadFile(file)
		is.NoErr(err)
		source += flat(string(text))
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(guide), -1)
	is.True(len(blocks) > 10)
	for _, block := range blocks {
		for _, part := range strings.Split(block[1], "\n\n") {
			if part = flat(part); !strings.Contains(source, part) {
				t.Errorf("not in the programs:\n%s", part)
			}
		}
	}
}

// flat removes the indentation of every line.
func flat(text string) string {
	var b strings.Builder
	for line := range strings.Lines(strings.TrimSpace(text) + "\n") {
		if line = strings.TrimSpace(line); line != "" {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}
