package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

// A container's health check has the pod's environment but no token.
func TestPingCommandPodHealth(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	selfSigned(t, cert, key)
	tokens := filepath.Join(dir, "tokens.json")
	is.NoErr(os.WriteFile(tokens, []byte(`{"tokens":[{"name":"ops","token":"ops-0123456789-0123456789","roles":["viewer"]}]}`), 0o600))
	for name, more := range map[string][]string{
		"http":                     nil,
		"https":                    {"TRAPEZE_TOKENS_FILE=" + tokens, "TRAPEZE_TLS_CERT=" + cert, "TRAPEZE_TLS_KEY=" + key},
		"with client certificates": {"TRAPEZE_TOKENS_FILE=" + tokens, "TRAPEZE_TLS_CERT=" + cert, "TRAPEZE_TLS_KEY=" + key, "TRAPEZE_TLS_CLIENT_CA=" + cert},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			db := database{t, pgtest.URL(t)}
			p := serve(t, db.url, more)
			_, addr, _ := strings.Cut(p.HTTP, "://")
			env := append([]string{"DATABASE_URL=postgres://nowhere.invalid/", "TRAPEZE_HTTP_ADDR=" + addr}, more...)
			is.Equal(trapeze(t, env, "ping"), result{out: "ok\n"})
			is.Equal(trapeze(t, env, "ping", "--ready"), result{out: "ok\n"})
			if name == "http" { // 0.0.0.0 means every interface, so the probe uses loopback
				_, port, _ := strings.Cut(addr, ":")
				is.Equal(trapeze(t, []string{"TRAPEZE_HTTP_ADDR=0.0.0.0:" + port, "TRAPEZE_TOKENS_FILE=" + tokens}, "ping"), result{out: "ok\n"})
				is.Equal(trapeze(t, nil, "ping", "--json", "--server", p.HTTP).out, `{"ok":true,"url":"`+p.HTTP+"/healthz\"}\n")
			}

			db.inState(db.enqueue("demo.sleep", "--args", `{"ms":60000}`), job.Running)
			p.signal(syscall.SIGTERM) // the pod drains
			pgtest.WaitFor(t, 10*time.Second, "the pod is not ready", func() bool { return trapeze(t, env, "ping", "--ready").code == cli.CodeUnavailable })
			is.True(strings.Contains(trapeze(t, env, "ping", "--ready").err, ": draining")) // the error gives the reason
			is.Equal(trapeze(t, env, "ping"), result{out: "ok\n"})                          // the pod is still alive
			p.signal(syscall.SIGTERM)
			is.Equal(p.end(), 0)
			is.Equal(trapeze(t, env, "ping").code, cli.CodeUnavailable)
		})
	}
	is.Equal(trapeze(t, []string{"TRAPEZE_HTTP_ADDR=127.0.0.1:0"}, "ping").code, cli.CodeUsage) // there is no port to probe
}
