package torture

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/faultnet"
	"github.com/trapeze-run/trapeze/internal/pgembed"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// The intervals in a run are short, so that many faults and their consequences fit into a minute.
const (
	leaseDuration     = 3 * time.Second
	heartbeatInterval = time.Second
	pollInterval      = time.Second
	shutdownGrace     = 3 * time.Second
	podSlots          = 8
	workersFor        = 2 // remote workers in addition to the pods

	// maxCrashes is large enough that jobs do not fail because the nemesis kills their pods. A job that keeps killing its pods does fail.
	maxCrashes = 20
)

// Options configures a run.
type Options struct {
	Seed     uint64
	Duration time.Duration // time before the quiet tail; the default is 1 minute
	Pods     int           // the default is 3 to 6, depending on the seed
	Workers  int           // remote workers; the default is 2, and a negative number means none
	Dir      string        // the run's folder, which must not exist; the default is torture/<seed>
	Binary   string        // the program under test; by default, [Build] builds it in the run's folder, and Close removes it
	Race     bool          // whether Binary was or will be built with the race detector
	Mutant   string        // a bug to plant in the program; requires an empty Binary
	Narrowed bool          // whether the run is limited to a few faults
	Logger   *slog.Logger  // receives reports about problems with the torture itself; nil discards them
}

// World contains a run's cluster, pods, ledger and records. Its methods are safe for concurrent use.
type World struct {
	Settings history.Settings // complete once the run has ended
	Dir      string
	Duration time.Duration   // from the start until every fault has been undone
	Admin    *pgxpool.Pool   // superuser sessions that connect directly to the server, which reserves ten connections for them
	Faults   *history.Writer // [history.Fault] records, each written after the fault has been undone
	Calls    *history.Writer // [history.Call] records, each written after the call has ended

	serverSettings map[string]string // settings of the primary and its standbys
	server         atomic.Pointer[pgembed.Server]
	binary         string
	built          bool // whether the binary was built for this run
	log            *slog.Logger
	pods           []*Pod
	workers        []*Worker
	tokens         tokens
	ledger         *ledger
	processes      *history.Writer
	keeping        sync.WaitGroup // waits for the pods' keepers
	stopKeep       context.CancelFunc

	mu         sync.Mutex
	serving    map[string]string // for each worker, the pod that last accepted it
	broken     error             // why the torture itself failed
	phase      string
	phaseBegan time.Time
	phaseTotal time.Duration
	recorded   int // number of recorded faults
	lastFault  string
	submitted  int
}

// PodsFor returns the number of pods for a seed, 3 to 6. Callers may use the race detector only for the odd seeds, so both the even and the
// odd seeds cover all four numbers.
func PodsFor(seed uint64) int { return 3 + int(seed/2%4) }

// Pods returns the pods, starting with pod1. A pod is a place in the fleet whose processes come and go.
func (w *World) Pods() []*Pod { return w.pods }

// Workers returns the remote workers, starting with worker1. Like a pod, a worker is a place in the fleet whose processes come and go.
func (w *World) Workers() []*Worker { return w.workers }

// places returns the places of all pods and workers.
func (w *World) places() (all []*place) {
	for _, p := range w.pods {
		all = append(all, p.place)
	}
	for _, k := range w.workers {
		all = append(all, k.place)
	}
	return all
}

// Server returns the PostgreSQL primary. A failover replaces it.
func (w *World) Server() *pgembed.Server { return w.server.Load() }

func (w *World) port() uint16 { return uint16(w.Server().Port()) } // #nosec G115 -- a port

// serverAddress returns the primary's current address.
func (w *World) serverAddress() (network, address string) {
	return "tcp", fmt.Sprintf("127.0.0.1:%d", w.Server().Port())
}

// serverSettings returns the settings of the primary and its standbys. A larger fleet is allowed more connections, but fewer than its pods
// could open.
func serverSettings(pods int) map[string]string {
	return map[string]string{
		"max_connections": strconv.Itoa(max(100, 9*pods)), "superuser_reserved_connections": "10", "fsync": "on",
		"synchronous_commit": "on", "wal_keep_size": "512MB", "wal_retrieve_retry_interval": "200ms",
	}
}

// Since returns the time since the run began.
func (w *World) Since() time.Duration { return time.Since(w.Settings.Began) }

// AppURL returns a database URL for the ordinary user that bypasses every proxy.
func (w *World) AppURL() string { return w.url(appRole) }

const (
	database = "torture"
	appRole  = "app" // owns the database and everything in it
)

func (w *World) url(role string) string {
	u, _ := url.Parse(w.Server().URL())
	u.User, u.Path = url.User(role), "/"+database
	return u.String()
}

// NewWorld creates the run's folder and starts the cluster, the ledger and the proxies, but no pods. Close stops them.
func NewWorld(ctx context.Context, o Options) (_ *World, err error) {
	w := &World{Dir: o.Dir, Duration: o.Duration, binary: o.Binary, log: o.Logger, serving: map[string]string{}}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	if w.Dir == "" {
		w.Dir = filepath.Join("torture", fmt.Sprint(o.Seed))
	}
	if w.Duration <= 0 {
		w.Duration = time.Minute
	}
	if o.Pods <= 0 {
		o.Pods = PodsFor(o.Seed)
	}
	if o.Workers == 0 {
		o.Workers = workersFor
	}
	w.Settings = history.Settings{
		Seed: o.Seed, Race: o.Race, Mutant: o.Mutant, Narrowed: o.Narrowed,
		Lease: leaseDuration, Heartbeat: heartbeatInterval, Poll: pollInterval, Grace: shutdownGrace, Slots: podSlots, MaxCrashes: maxCrashes,
	}
	if err := os.MkdirAll(filepath.Dir(w.Dir), 0o755); err != nil {
		return nil, err
	}
	if err := os.Mkdir(w.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the run's folder: %w", err)
	}
	if err := os.Mkdir(filepath.Join(w.Dir, podLogs), 0o755); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	if err := w.openBinary(ctx); err != nil {
		return nil, err
	}
	if err := w.openRecords(); err != nil {
		return nil, err
	}
	if w.ledger, err = startLedger(w.Dir, w.fail); err != nil {
		return nil, err
	}
	if err := w.startCluster(ctx, o.Pods); err != nil {
		return nil, err
	}
	if err = w.writeTokens(max(o.Workers, 0)); err != nil {
		return nil, err
	}
	for n := range o.Pods {
		name := podName(n)
		proxy, err := faultnet.StartFollowing(w.url(name), w.serverAddress)
		if err != nil {
			return nil, err
		}
		w.pods = append(w.pods, newPod(w, name, proxy))
	}
	for n := range max(o.Workers, 0) {
		k, err := newWorker(w, n)
		if err != nil {
			return nil, err
		}
		w.workers = append(w.workers, k)
	}
	return w, nil
}

// openBinary builds the program under test unless a binary was given.
func (w *World) openBinary(ctx context.Context) (err error) {
	if w.binary == "" {
		w.binary, w.built = filepath.Join(w.Dir, "trapeze"), true
	}
	if w.binary, err = filepath.Abs(w.binary); err != nil {
		return err
	}
	if w.built {
		if err := Build(ctx, w.binary, w.Settings.Race, w.Settings.Mutant); err != nil {
			return err
		}
	}
	w.Settings.Binary, err = hashOf(w.binary)
	return err
}

func (w *World) openRecords() (err error) {
	for name, into := range map[string]**history.Writer{
		history.FaultsFile: &w.Faults, history.CallsFile: &w.Calls, history.PodsFile: &w.processes,
	} {
		if *into, err = history.NewWriter(w.Dir, name); err != nil {
			return err
		}
	}
	w.Faults.Wrote, w.Calls.Wrote = w.noteFault, w.noteCall
	return nil
}

// startCluster starts PostgreSQL. Each pod has a separate role that acts as the owner of all objects, so the pods' sessions can be told
// apart, and none of them belongs to a superuser.
func (w *World) startCluster(ctx context.Context, pods int) (err error) {
	w.serverSettings = serverSettings(pods)
	server, err := pgembed.Start(ctx, pgembed.Options{Logger: w.log, Settings: w.serverSettings})
	if err != nil {
		return err
	}
	w.server.Store(server)
	first, err := pgx.Connect(ctx, server.URL())
	if err != nil {
		return err
	}
	defer first.Close(context.WithoutCancel(ctx))
	login := "login password '" + first.Config().Password + "'" // the server's URL refers to a password file that has one password for all roles
	statements := []string{"create role " + appRole + " " + login, "create database " + database + " owner " + appRole}
	for n := range pods {
		statements = append(statements, fmt.Sprintf("create role pod%d %s in role %s", n+1, login, appRole),
			fmt.Sprintf("alter role pod%d set role to %s", n+1, appRole))
	}
	for _, sql := range statements {
		if _, err := first.Exec(ctx, sql); err != nil {
			return fmt.Errorf("set up the roles: %w", err)
		}
	}
	if err := first.QueryRow(ctx, "show server_version").Scan(&w.Settings.PostgreSQL); err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(w.url("postgres"))
	if err != nil {
		return err
	}
	config.MaxConns = 6
	for name, value := range map[string]string{
		"application_name": adminName, "statement_timeout": "0", "lock_timeout": "0",
		"idle_in_transaction_session_timeout": "0", "default_transaction_isolation": "read committed",
	} {
		config.ConnConfig.RuntimeParams[name] = value
	}
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		c.Port = w.port()
		return nil
	}
	if w.Admin, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	_, err = w.Admin.Exec(ctx, schedulesTable)
	return err
}

// adminName is the application name of the torture's own sessions. Faults, including changed settings, do not affect these sessions.
const adminName = "torture"

// Close kills all remaining processes and removes the cluster. It keeps the run's folder.
func (w *World) Close() error {
	if w.stopKeep != nil {
		w.stopKeep()
	}
	w.keeping.Wait()
	for _, k := range w.workers {
		k.close()
	}
	for _, p := range w.pods {
		p.close()
	}
	if w.Admin != nil {
		w.Admin.Close()
	}
	var err error
	if w.ledger != nil {
		err = w.ledger.close()
	}
	if server := w.Server(); server != nil {
		w.thawServer()
		err = errors.Join(err, server.Stop())
	}
	if w.built {
		if removed := os.Remove(w.binary); !errors.Is(removed, os.ErrNotExist) {
			err = errors.Join(err, removed)
		}
	}
	for _, records := range []*history.Writer{w.Faults, w.Calls, w.processes} {
		if records != nil {
			err = errors.Join(err, records.Close())
		}
	}
	return err
}
