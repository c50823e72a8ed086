package e2e

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestPoolParametersInAddress(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.EmptyURL(t)}
	for _, parameter := range []string{"pool_max_conns=3", "pool_min_conns=1", "pool_min_idle_conns=1", "pool_max_conn_lifetime=1h",
		"pool_max_conn_lifetime_jitter=1m", "pool_max_conn_idle_time=30m", "pool_health_check_period=1m"} {
		db.url = pgtest.WithParameter(db.url, parameter)
	}
	is.Equal(db.run("migrate", "status").err, "")
	is.Equal(db.run("migrate", "up").err, "")
	db.ok("jobs")
	is.True(strings.Contains(db.run("doctor").out, "a notification arrived")) // the notification used a connection outside the pool
	p := serve(t, db.url, []string{"TRAPEZE_DATABASE_DIRECT_URL=" + db.url})
	pgtest.Wait(t, "it listens", func() bool { return strings.Contains(p.get(t, "/metrics"), "trapeze_listen_connected 1") })
}

func (p *pod) get(t *testing.T, path string) string {
	t.Helper()
	response, err := http.Get(p.HTTP + path)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	var text bytes.Buffer
	_, _ = text.ReadFrom(response.Body)
	return text.String()
}
