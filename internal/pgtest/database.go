package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/trapeze-run/trapeze/internal/pgembed"
)

// abandonedAfter is longer than go test lets a test process run.
const abandonedAfter = 2 * time.Hour

// within is the time limit for the work that pgtest itself does on the server during a test.
const within = 2 * time.Minute

// shared is the source of all databases in this process.
var shared = source{prefix: fmt.Sprintf("trapeze_test_%d_%s", os.Getpid(), strings.ToLower(rand.Text()[:8]))}

// source creates databases on one server.
type source struct {
	prefix     string // name prefix of all databases that it creates
	mainCalled bool

	made atomic.Int64

	// Each of these fields is set, under mu, by the first call to ready that needs it. They are read only after a call to ready.
	mu       sync.Mutex
	err      error // why there is no server or template; reported to every later test
	server   *pgembed.Server
	url      string // URL of the database to connect to when creating others
	admin    *pgxpool.Pool
	template string // name of the migrated database, empty until it exists
	strategy string // appended to CREATE DATABASE
}

// database creates a database for t and returns its URL.
func (s *source) database(t testing.TB, migrated bool) string {
	t.Helper()
	if !s.mainCalled {
		t.Fatal("pgtest: this package needs func TestMain(m *testing.M) { pgtest.Main(m) }")
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	name, err := s.create(ctx, migrated)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		// The test's context has already been cancelled at this point.
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		if err := s.drop(ctx, name); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return WithDatabase(s.url, name)
}

func (s *source) create(ctx context.Context, migrated bool) (string, error) {
	if err := s.ready(ctx, migrated); err != nil {
		return "", err
	}
	template := "template0"
	if migrated {
		template = s.template
	}
	name := fmt.Sprintf("%s_%d", s.prefix, s.made.Add(1))
	return name, s.createFrom(ctx, name, template)
}

// with creates an empty database for t with options of CREATE DATABASE, and returns its URL.
func (s *source) with(t testing.TB, options string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	err := s.ready(ctx, false)
	name := fmt.Sprintf("%s_%d", s.prefix, s.made.Add(1))
	if err == nil {
		err = s.exec(ctx, "CREATE DATABASE "+quote(name)+" TEMPLATE template0 "+options)
	}
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		if err := s.drop(ctx, name); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return WithDatabase(s.url, name)
}

// ready ensures that there is a server and, if needed, a template.
func (s *source) ready(ctx context.Context, migrated bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	if s.admin == nil {
		if s.err = s.findServer(ctx); s.err != nil {
			return s.err
		}
	}
	if !migrated || s.template != "" {
		return nil
	}
	template := s.prefix + "_template"
	if s.err = MakeTemplate(ctx, s.url, template); s.err != nil {
		return errors.Join(s.err, s.drop(ctx, template))
	}
	s.template = template
	return nil
}

// findServer connects to the server at DATABASE_URL if there is one, and otherwise to our own.
func (s *source) findServer(ctx context.Context) error {
	given, err := GivenServer(ctx)
	if err != nil {
		return err
	}
	if given == "" {
		return s.ours(ctx)
	}
	if err := s.connect(given); err != nil {
		return err
	}
	return s.sweep(ctx, abandonedAfter)
}

// connect opens the pool for the statements that create and drop databases. Its connections stay open, because starting a server process
// takes as long as copying the template.
func (s *source) connect(url string) error {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	config.MaxConns, config.MinConns, config.MinIdleConns = 2, 0, 0
	s.url = url
	s.admin, err = pgxpool.NewWithConfig(context.Background(), config)
	return err
}

// sweep drops databases that test processes have left behind on the server, for example after a timeout. It drops those that are at least
// the given age and have no sessions.
func (s *source) sweep(ctx context.Context, age time.Duration) error {
	rows, err := s.admin.Query(ctx, `select datname from pg_database d
		where datname ~ '^trapeze_test_[0-9]+_[a-z2-7]{8}_([0-9]+|template)$' and not exists (select from pg_stat_activity a where a.datname = d.datname)
			and (pg_stat_file('base/' || oid || '/PG_VERSION', true)).modification <= now() - $1::interval`, age)
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, name := range names {
		_ = s.exec(ctx, "DROP DATABASE IF EXISTS "+quote(name)) // another process may have dropped the database, or may be connecting to it
	}
	return err
}

// ours finds the server shared by the whole test command, or starts one. Either way, the server contains a template.
func (s *source) ours(ctx context.Context) error {
	url := SharedServer()
	if url == "" {
		server, err := StartServer(ctx)
		if err != nil {
			return err
		}
		s.server, url = server, server.URL()
	}
	if err := s.connect(url); err != nil {
		return err
	}
	var version int
	if err := s.admin.QueryRow(ctx, "SELECT current_setting('server_version_num')::int").Scan(&version); err != nil {
		return err
	}
	// Copying the files takes 22 ms of CPU time; copying through the write-ahead log takes 32 ms. PostgreSQL 14 and older always copy the
	// files.
	if version >= 150000 {
		s.strategy = " STRATEGY file_copy"
	}
	s.template = Template
	return nil
}

// createFrom copies a database. A template cannot be copied while a session is connected to it, so createFrom retries: the migration's last
// connection may take a moment to close, and autovacuum may be connected.
func (s *source) createFrom(ctx context.Context, name, template string) error {
	const objectInUse = "55006"
	for {
		err := s.exec(ctx, "CREATE DATABASE "+quote(name)+" TEMPLATE "+quote(template)+s.strategy)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != objectInUse {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

func (s *source) drop(ctx context.Context, name string) error {
	return s.exec(ctx, "DROP DATABASE IF EXISTS "+quote(name)+" WITH (FORCE)")
}

func (s *source) exec(ctx context.Context, sql string) error {
	if _, err := s.admin.Exec(ctx, sql); err != nil {
		return fmt.Errorf("%s: %w", strings.ToLower(sql), err)
	}
	return nil
}

// stop removes everything that the source created.
func (s *source) stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.admin != nil {
		defer s.admin.Close()
	}
	if s.server != nil {
		return s.server.Stop()
	}
	if s.template == "" || s.template == Template {
		return nil // the template belongs to the shared server
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return s.drop(ctx, s.template)
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// Role creates a role without any permissions. It returns the role's name and a URL that connects to the database at url as that role. The
// role is dropped when the test ends.
func Role(t testing.TB, url string) (name, as string) {
	t.Helper()
	name = "modest_" + strings.ToLower(rand.Text()[:12])
	run := func(ctx context.Context, statements ...string) {
		conn, err := Dial(ctx, url)
		if err != nil {
			t.Errorf("pgtest: %v", err)
			return
		}
		defer conn.Close(ctx)
		for _, statement := range statements {
			if _, err := conn.Exec(ctx, statement); err != nil {
				t.Errorf("pgtest: %s: %v", statement, err)
			}
		}
	}
	run(t.Context(), "create role "+name)
	t.Cleanup(func() { run(context.Background(), "drop owned by "+name, "drop role "+name) })
	return name, WithParameter(url, "role="+name) // switches to the role in every session
}
