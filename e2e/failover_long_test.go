//go:build long

package e2e

import (
	"bufio"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
)

func TestServeWithStandbyOnly(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	primary := pgtest.Primary(t)
	standby := primary.AddStandby(t)
	primary.Kill(t)
	for name, url := range map[string]string{
		"one host":                 standby.URL(),
		"two, chosen by attribute": pgtest.URLs(primary, standby) + "&target_session_attrs=read-write",
	} {
		up := database{t, url}.run("migrate", "up")
		is.Equal(up.code, cli.CodeUnavailable)
		is.True(strings.Contains(up.err, "accepts no writes: it is a standby")) // the error does not depend on how the standby rejects the connection
		t.Log(name, up.err)
	}

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	is.NoErr(err)
	addr := listener.Addr().String()
	is.NoErr(listener.Close())
	var log podtest.Log
	c := exec.Command(os.Args[0], "serve")
	c.Env = environment("DATABASE_URL="+standby.URL(), "TRAPEZE_HTTP_ADDR="+addr)
	c.Stderr = &log
	out, err := c.StdoutPipe()
	is.NoErr(err)
	is.NoErr(c.Start())
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGKILL)
		_ = c.Wait()
	})
	p := &pod{t: t, ReadyLine: cli.ReadyLine{HTTP: "http://" + addr}}
	pgtest.Wait(t, "it reports that it is not ready", func() bool { return p.status("/readyz") == http.StatusServiceUnavailable })
	is.Equal(p.status("/healthz"), http.StatusOK)
	is.True(strings.Contains(p.get(t, "/readyz"), "accepts no writes"))
	first := time.Now()
	pgtest.Wait(t, "some more attempts", func() bool { return time.Since(first) > 3*time.Second })
	is.Equal(strings.Count(log.String(), "not started yet"), 1)

	standby.Promote(t)
	lines := bufio.NewScanner(out)
	is.True(lines.Scan()) // serve starts without intervention
	is.NoErr(json.Unmarshal(lines.Bytes(), &p.ReadyLine))
	is.Equal(p.status("/readyz"), http.StatusOK)
}
