package program

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/trapeze-run/trapeze/handlers"
	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/migrate"
	"github.com/trapeze-run/trapeze/internal/pgembed"
	"github.com/trapeze-run/trapeze/runner"
)

// stage is the database that a demo uses: either a separate server, or separate schemas in the database given by DATABASE_URL. The demo
// never touches an existing schema, not even the one in TRAPEZE_SCHEMA.
type stage struct {
	config      cli.Settings // DatabaseURL and Schema refer to the stage
	log         *slog.Logger
	keepSchemas bool // whether to keep the schemas after the demo
	co2         string
	pool        *pgxpool.Pool
	server      *pgembed.Server
}

// demoLogger returns a logger that discards everything unless TRAPEZE_LOG is set, because the screen already shows all important
// information.
func demoLogger(c cli.Settings) *slog.Logger {
	if os.Getenv("TRAPEZE_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return c.Logger()
}

// set creates the stage. The caller must call strike to remove it, even if set returns an error.
func (s *stage) set(ctx context.Context, screen *screen) error {
	began := time.Now()
	whose := "from DATABASE_URL, in separate schemas"
	s.config.Options.Schema = "trapeze_demo_" + strings.ToLower(rand.Text()[:8])
	s.co2 = s.config.Options.Schema + "_co2"
	if s.config.DatabaseURL == "" {
		screen.say("Starting a PostgreSQL for this demo ...")
		server, err := pgembed.Start(ctx, pgembed.Options{Logger: s.log})
		if err != nil {
			return fmt.Errorf("start PostgreSQL for the demo, since DATABASE_URL is not set: %w", err)
		}
		s.server, s.config.DatabaseURL, s.config.Options.DirectURL = server, server.URL(), ""
		s.config.Options.Schema, s.co2 = "trapeze", "co2"
		whose = "removed after the demo"
	}
	var err error
	if s.pool, err = s.config.Connect(ctx, false); err != nil {
		return err
	}
	if err := migrate.Up(ctx, s.config.MigrationURL(), s.config.Options.Schema); err != nil {
		return err
	}
	for _, schema := range []string{s.co2, s.co2Recovery()} {
		if err := handlers.Setup(ctx, s.pool, handlers.Options{Schema: schema}); err != nil {
			return err
		}
	}
	var version string
	if err := s.pool.QueryRow(ctx, `select split_part(current_setting('server_version'), ' ', 1)`).Scan(&version); err != nil {
		return err
	}
	screen.say("PostgreSQL %s, %s, ready in %.1f s.", version, whose, time.Since(began).Seconds())
	return nil
}

// co2Recovery returns the schema for the second run, which must not use data from the first run.
func (s *stage) co2Recovery() string { return s.co2 + "_recovery" }

// strike removes the stage. It does not use the demo's context, which may already be cancelled.
func (s *stage) strike() (err error) {
	if s.pool != nil {
		if s.server == nil && !s.keepSchemas {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			for _, schema := range []string{s.config.Options.Schema, s.co2, s.co2Recovery()} {
				if _, e := s.pool.Exec(ctx, "drop schema if exists "+pgx.Identifier{schema}.Sanitize()+" cascade"); e != nil {
					err = errors.Join(err, fmt.Errorf("drop schema %s of the demo; drop it manually: %w", schema, e))
				}
			}
		}
		s.pool.Close()
	}
	if s.server != nil {
		err = errors.Join(err, s.server.Stop())
	}
	return err
}

// runnerOptions returns the options for each of the demo's pods. They keep the defaults, so that the demo shows typical performance.
func (s *stage) runnerOptions(name string) runner.Options {
	return runner.Options{PodName: name, Version: s.config.Options.Version, Schema: s.config.Options.Schema, DirectURL: s.config.Options.DirectURL, Logger: s.log}
}

// podSettings is sent to a pod as the first line of its stdin, because other users could see the password on the command line.
type podSettings struct {
	Name, Version, DatabaseURL, DirectURL, Schema, CO2 string

	BatchRows  int
	BatchPause time.Duration
}

// newDemoPodCommand returns the command for the pods that the demo starts as separate processes, one of which it kills. A pod runs only
// while its stdin is open, so it never outlives the demo.
func newDemoPodCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "pod",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			in := bufio.NewReader(c.InOrStdin())
			line, err := in.ReadBytes('\n')
			if err != nil {
				return cli.Usage("only the demo command starts a demo pod: want its settings as the first line on stdin")
			}
			var p podSettings
			if err := json.Unmarshal(line, &p); err != nil {
				return cli.Usage("settings of a demo pod: %w", err)
			}
			ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGTERM)
			defer stop()
			go func() {
				_, _ = io.Copy(io.Discard, in)
				stop()
				time.Sleep(leaveWithin)
				os.Exit(cli.CodeUnavailable) // the database is gone too, so there is nothing to wait for
			}()
			return p.run(ctx)
		},
	}
}

// run runs jobs until ctx is done.
func (p podSettings) run(ctx context.Context) error {
	c, err := cli.Load() // the environment is the same as the demo's
	if err != nil {
		return err
	}
	c.DatabaseURL, c.Options.DirectURL, c.Options.Schema = p.DatabaseURL, p.DirectURL, p.Schema
	pool, err := c.Connect(ctx, false)
	if err != nil {
		return err
	}
	defer pool.Close()
	c.Options.Version = p.Version
	s := stage{config: c, log: demoLogger(c)}
	r, err := runner.New(pool, s.runnerOptions(p.Name))
	if err != nil {
		return err
	}
	defer r.Close()
	err = handlers.Register(r, pool, handlers.Options{Schema: p.CO2, BatchRows: p.BatchRows, BatchPause: p.BatchPause})
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, r.StopNow)
	return r.Run(ctx)
}

// leaveWithin limits how long a pod may take to shut down before it is killed.
const leaveWithin = 5 * time.Second

// podProcess is a pod in a separate process.
type podProcess struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan struct{} // closed once the process has exited and been waited for
}

func startPodProcess(p podSettings) (*podProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program to start %s: %w", p.Name, err)
	}
	one := &podProcess{name: p.Name, cmd: exec.Command(self, "demo", "pod"), ended: make(chan struct{})}
	one.cmd.Stderr = os.Stderr
	if one.stdin, err = one.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := one.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Name, err)
	}
	go func() {
		_ = one.cmd.Wait() // the demo does not need the exit status
		close(one.ended)
	}()
	if err := json.NewEncoder(one.stdin).Encode(p); err != nil {
		one.kill()
		return nil, fmt.Errorf("start %s: %w", p.Name, err)
	}
	return one, nil
}

// kill kills the process with SIGKILL, so that it cannot clean up.
func (p *podProcess) kill() {
	_ = p.cmd.Process.Kill() // fails only if the process has already exited
	<-p.ended
}

// leave lets the pod drain, and kills it if that takes too long.
func (p *podProcess) leave() {
	_ = p.stdin.Close() // fails only if the process has already exited
	select {
	case <-p.ended:
	case <-time.After(leaveWithin):
		p.kill()
	}
}

// alive reports whether the process is still running.
func (p *podProcess) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// screen prints lines and, on a terminal, live progress bars below them. Only one goroutine may use it.
type screen struct {
	out  io.Writer
	live bool // whether the output is a terminal whose cursor can be moved
	bars *mpb.Progress
	open []*bar
}

func newScreen(out io.Writer) *screen {
	return &screen{out: out, live: cli.IsTerminal(out)}
}

// say prints a line above the bars.
func (s *screen) say(format string, args ...any) {
	line := fmt.Sprintf(format, args...) + "\n"
	if s.bars != nil {
		_, _ = s.bars.Write([]byte(line))
		return
	}
	_, _ = io.WriteString(s.out, line)
}

// bar adds a progress bar below the others. clear ends all bars.
func (s *screen) bar(name, unit string) *bar {
	b := &bar{screen: s, name: name, unit: unit, said: time.Now()}
	b.note.Store(new(string))
	if !s.live {
		return b
	}
	if s.bars == nil {
		s.bars = mpb.New(mpb.WithOutput(s.out), mpb.WithRefreshRate(80*time.Millisecond), mpb.WithWidth(96))
	}
	b.line = s.bars.New(0, mpb.BarStyle().Lbound("").Filler("█").Tip("█").Padding("░").Rbound(""),
		mpb.PrependDecorators(decor.Name("  "+name, decor.WC{W: 18, C: decor.DindentRight})),
		mpb.AppendDecorators(
			decor.Any(func(decor.Statistics) string { return " " + b.count() }, decor.WC{W: 25, C: decor.DindentRight}),
			decor.Any(func(decor.Statistics) string { return *b.note.Load() }, decor.WC{W: 26, C: decor.DindentRight}),
		))
	s.open = append(s.open, b)
	return b
}

// clear stops updating the bars and leaves them on the screen, so that later lines are printed below them.
func (s *screen) clear() {
	if s.bars == nil {
		return
	}
	for _, b := range s.open {
		b.line.Abort(false)
	}
	s.bars.Wait()
	s.bars, s.open = nil, nil
}

// bar shows the progress of one task.
type bar struct {
	*screen
	name, unit  string
	line        *mpb.Bar // nil if the output is not a terminal
	done, total atomic.Int64
	note        atomic.Pointer[string]
	said        time.Time // when a plain line last reported the progress
}

// plainEvery is the interval between plain lines that report progress.
const plainEvery = 3 * time.Second

// set updates the progress.
func (b *bar) set(done, total int64) {
	if total <= 0 || done == b.done.Load() && total == b.total.Load() {
		return
	}
	b.done.Store(done)
	b.total.Store(total)
	if b.line != nil {
		b.line.SetTotal(total+1, false) // total+1 keeps the bar incomplete until end is called
		b.line.SetCurrent(done)
		return
	}
	if time.Since(b.said) >= plainEvery {
		b.said = time.Now()
		b.say("  %-16s %s", b.name, b.count())
	}
}

// remark shows a few words next to the bar.
func (b *bar) remark(words string) { b.note.Store(&words) }

// end fills the bar and shows a remark. Without a terminal, it prints the result as a single line.
func (b *bar) end(words string) {
	b.remark(words)
	if b.line != nil {
		total := max(b.total.Load(), 1)
		b.line.SetTotal(total, false)
		b.line.SetCurrent(total)
		b.line.SetTotal(total, true)
		return
	}
	b.say("  %-16s %-22s %s", b.name, b.count(), words)
}

// remove removes the bar from the screen.
func (b *bar) remove() {
	if b.line != nil {
		b.line.Abort(true)
	}
}

func (b *bar) count() string {
	done, total := b.done.Load(), b.total.Load()
	switch {
	case total == 0:
		return ""
	case done >= total:
		return thousands(total) + " " + b.unit
	}
	return thousands(done) + " of " + thousands(total) + " " + b.unit
}

// thousands formats an integer with thousands separators.
func thousands(n int64) string { return commas(strconv.FormatInt(n, 10)) }

// commas inserts thousands separators into the integer part of a decimal number.
func commas(digits string) string {
	whole := len(digits)
	for i, c := range digits {
		if c == '.' {
			whole = i
			break
		}
	}
	for i := whole - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
