//go:build ha && linux

package ha

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

// These are the pods' database and the ordinary user that owns it.
const (
	appRole  = "app"
	password = "app"
	database = "app"
)

// prepare creates the pods' user and database on a primary. url is the superuser's URL of the primary.
func prepare(t *testing.T, url string) {
	t.Helper()
	execute(t, url, "", "create role "+appRole+" login password '"+password+"'", "create database "+database+" owner "+appRole)
	execute(t, url, database, "set role "+appRole, "create table ha_probe (at timestamptz default now())")
}

// execute runs statements on one connection. If name is not empty, it connects to the database with that name on the same server.
func execute(t *testing.T, url, name string, statements ...string) {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	if name != "" {
		config.Database = name
	}
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for _, sql := range statements {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// address returns the URL of the pods' database on servers with the given ports.
func address(ports ...int) string {
	var hosts []string
	for _, port := range ports {
		hosts = append(hosts, fmt.Sprintf("127.0.0.1:%d", port))
	}
	return "postgres://" + appRole + ":" + password + "@" + strings.Join(hosts, ",") + "/" + database + "?sslmode=disable"
}

const readWrite = "&target_session_attrs=read-write"

// member is a Patroni instance and its PostgreSQL server.
type member struct {
	name       string
	port, rest int
	patroni    *process
}

// cluster is a pair of members that coordinate through etcd.
type cluster struct {
	t       *testing.T
	members []*member
}

const patroniFile = `scope: ha
name: %[1]s
restapi:
  listen: 127.0.0.1:%[2]d
  connect_address: 127.0.0.1:%[2]d
etcd3:
  host: 127.0.0.1:%[3]d
bootstrap:
  dcs:
    ttl: 20
    loop_wait: 2
    retry_timeout: 5
    postgresql:
      use_pg_rewind: true
      parameters:
        max_connections: 200
        wal_keep_size: 256MB
  initdb:
    - encoding: UTF8
    - locale: C
postgresql:
  listen: 127.0.0.1:%[4]d
  connect_address: 127.0.0.1:%[4]d
  data_dir: %[5]s
  bin_dir: %[6]s
  pgpass: %[5]s.pgpass
  authentication:
    superuser: {username: postgres, password: postgres}
    replication: {username: replicator, password: replicator}
  parameters:
    unix_socket_directories: ''
    wal_retrieve_retry_interval: 200ms
  pg_hba:
    - host all all 127.0.0.1/32 trust
    - host replication all 127.0.0.1/32 trust
`

// startCluster starts etcd and two Patroni instances, and waits until the second server streams from the first.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	client, peer := freePort(t), freePort(t)
	start(t, "etcd", true, nil, "etcd", "--name", "ha", "--data-dir", filepath.Join(folder(t), "etcd"),
		"--listen-client-urls", fmt.Sprintf("http://127.0.0.1:%d", client), "--advertise-client-urls", fmt.Sprintf("http://127.0.0.1:%d", client),
		"--listen-peer-urls", fmt.Sprintf("http://127.0.0.1:%d", peer), "--initial-advertise-peer-urls", fmt.Sprintf("http://127.0.0.1:%d", peer),
		"--initial-cluster", fmt.Sprintf("ha=http://127.0.0.1:%d", peer), "--unsafe-no-fsync")
	pgtest.WaitFor(t, time.Minute, "etcd listens", func() bool { return listens(client) })
	c := &cluster{t: t}
	for _, name := range []string{"a", "b"} {
		m := &member{name: name, port: freePort(t), rest: freePort(t)}
		file := filepath.Join(folder(t), name+".yml")
		text := fmt.Sprintf(patroniFile, name, m.rest, client, m.port, filepath.Join(folder(t), "data-"+name), serverPrograms(t))
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		m.patroni = start(t, "patroni-"+name, true, []string{"LC_ALL=C.UTF-8"}, "patroni", file)
		c.members = append(c.members, m)
		pgtest.WaitFor(t, 2*time.Minute, "patroni "+name+" runs PostgreSQL", func() bool { return c.is(m, "health") })
	}
	c.replicates()
	prepare(t, superuser(c.leader()))
	return c
}

// serverPrograms returns the folder that contains PostgreSQL's server programs.
func serverPrograms(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("PGBIN"); dir != "" {
		return dir
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	if len(found) == 0 {
		t.Skip("no PostgreSQL in /usr/lib/postgresql: install the Debian package postgresql, or set PGBIN")
	}
	return found[len(found)-1]
}

func superuser(m *member) string {
	return fmt.Sprintf("postgres://postgres:postgres@127.0.0.1:%d/postgres?sslmode=disable", m.port)
}

// is queries a member's REST API and reports whether it responds with status 200. GET /primary, for example, returns 200 only on the
// primary.
func (c *cluster) is(m *member, path string) bool {
	web := http.Client{Timeout: 2 * time.Second}
	response, err := web.Get(fmt.Sprintf("http://127.0.0.1:%d/%s", m.rest, path))
	if err != nil {
		return false
	}
	defer response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// leader waits until one member is the primary and returns it.
func (c *cluster) leader() (found *member) {
	pgtest.WaitFor(c.t, time.Minute, "a primary", func() bool {
		for _, m := range c.members {
			if c.is(m, "primary") {
				found = m
				return true
			}
		}
		return false
	})
	return found
}

// other returns the other member.
func (c *cluster) other(m *member) *member {
	if m == c.members[0] {
		return c.members[1]
	}
	return c.members[0]
}

// replicates waits until the standby streams without lag, which Patroni requires for a switchover.
func (c *cluster) replicates() {
	pgtest.WaitFor(c.t, 2*time.Minute, "the standby streams", func() bool {
		leader := c.leader()
		if !c.is(c.other(leader), "replica?lag=1MB") {
			return false
		}
		conn, err := pgx.Connect(c.t.Context(), superuser(leader))
		if err != nil {
			return false
		}
		defer conn.Close(c.t.Context())
		var streams bool
		err = conn.QueryRow(c.t.Context(), `select exists (select from pg_stat_replication where state = 'streaming')`).Scan(&streams)
		return err == nil && streams
	})
}

// switchover asks Patroni to swap the roles. It returns the future primary immediately, without waiting for the switchover.
func (c *cluster) switchover() *member {
	c.t.Helper()
	old := c.leader()
	candidate := c.other(old)
	body, _ := json.Marshal(map[string]string{"leader": old.name, "candidate": candidate.name})
	go func() {
		web := http.Client{Timeout: time.Minute}
		response, err := web.Post(fmt.Sprintf("http://127.0.0.1:%d/switchover", old.rest), "application/json", bytes.NewReader(body))
		if err != nil {
			return // acceptsWrites reports this failure
		}
		_ = response.Body.Close()
	}()
	return candidate
}

const haproxyFile = `global
  maxconn 1000
defaults
  mode tcp
  timeout connect 2s
  timeout client 1h
  timeout server 1h
  timeout check 2s
listen postgres
  bind 127.0.0.1:%d
  option httpchk OPTIONS /primary
  http-check expect status 200
  default-server inter 3s fall 3 rise 2 %s
  server a 127.0.0.1:%d check port %d
  server b 127.0.0.1:%d check port %d
`

// startHAProxy starts HAProxy with the configuration from Patroni's manual and returns its port.
func (c *cluster) startHAProxy(option string) (port int) {
	c.t.Helper()
	port = freePort(c.t)
	a, b := c.members[0], c.members[1]
	file := filepath.Join(folder(c.t), "haproxy.cfg")
	text := fmt.Sprintf(haproxyFile, port, option, a.port, a.rest, b.port, b.rest)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		c.t.Fatal(err)
	}
	start(c.t, "haproxy", true, nil, "haproxy", "-db", "-f", file)
	// Right after its start, HAProxy treats both servers as the primary.
	leader, row := c.leader(), 0
	pgtest.WaitFor(c.t, time.Minute, "HAProxy leads to the primary alone", func() bool {
		if row++; !writes(c.t.Context(), address(port), leader.port) {
			row = 0
		}
		return row == 20
	})
	return port
}
