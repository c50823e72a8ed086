package e2e

import (
	"github.com/trapeze-run/trapeze/internal/cli"

	"bytes"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"
)

// sayings is the output of a process. Tests can wait for a text in it.
type sayings struct {
	t    *testing.T
	read *os.File
	all  bytes.Buffer
}

// until reads the output until it contains a text.
func (s *sayings) until(text string) {
	s.t.Helper()
	part := make([]byte, 4096)
	_ = s.read.SetReadDeadline(time.Now().Add(20 * time.Second))
	for !strings.Contains(s.all.String(), text) {
		n, err := s.read.Read(part)
		if s.all.Write(part[:n]); err != nil {
			s.t.Fatalf("%q was not logged: %v\n%s", text, err, s.all.String())
		}
	}
}

// startSaying starts a remote worker and captures its log.
func startSaying(t *testing.T, server string, env ...string) (*exec.Cmd, *sayings) {
	t.Helper()
	is := is.New(t)
	read, write, err := os.Pipe()
	is.NoErr(err)
	cmd := exec.Command(os.Args[0], "worker", "--server", server)
	cmd.Env, cmd.Stderr = environment(append([]string{"TRAPEZE_DEMO_HANDLERS=true", "TRAPEZE_SLOTS=2", "SSL_CERT_FILE=/nonexistent"}, env...)...), write
	is.NoErr(cmd.Start())
	is.NoErr(write.Close())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = read.Close()
	})
	return cmd, &sayings{t: t, read: read}
}

// If a server address is wrong, or a proxy in front of the pod does not forward gRPC, the worker logs the cause and keeps trying.
func TestRemoteWorkerUnreachablePods(t *testing.T) {
	t.Parallel()
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	old := httptest.NewUnstartedServer(http.NotFoundHandler())
	old.TLS = &tls.Config{NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12}
	old.StartTLS()
	t.Cleanup(old.Close)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	is.New(t).NoErr(err)
	nobody := free.Addr().String()
	is.New(t).NoErr(free.Close())
	for server, says := range map[string]string{
		plain.URL: "does not speak HTTP/2 in clear text",
		"https" + strings.TrimPrefix(plain.URL, "http"): "does not speak TLS",
		old.URL: "speaks TLS but not HTTP/2",
		"http" + strings.TrimPrefix(old.URL, "https"): "does not speak HTTP/2 in clear text",
		"http://" + nobody:                            "connection refused",
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			_, said := startSaying(t, server)
			said.until("no pod accepts the worker, retrying")
			said.until("server=" + server)
			said.until(says)
		})
	}
}

func TestRemoteWorkerInvalidConfiguration(t *testing.T) {
	t.Parallel()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	pem := filepath.Join(t.TempDir(), "gpu.pem")
	for _, c := range []struct {
		env, flags []string
		code       int
		says       string
	}{
		{nil, []string{"--server", "http://jobs.example.org"}, cli.CodeUsage, "use https://"},
		{nil, []string{"--server", "jobs.example.org:443"}, cli.CodeUsage, "want https://host:port"},
		{nil, []string{"--server", plain.URL + ","}, cli.CodeUsage, "want https://host:port"},
		{[]string{"TRAPEZE_KINDS=demo.nosuch"}, []string{"--server", plain.URL}, cli.CodeUsage, `no handler for the kind "demo.nosuch": registered are demo.block`},
		{[]string{"TRAPEZE_SLOTS=2000"}, []string{"--server", plain.URL}, cli.CodeUsage, "2000 slots, want 1 to 1000"},
		{nil, []string{"--server", plain.URL, "--cert", pem}, cli.CodeUsage, "want --cert and --key together"},
		{nil, []string{"--server", plain.URL, "--cert", pem, "--key", pem}, cli.CodeUsage, "no such file"},
	} {
		said := trapeze(t, append([]string{"TRAPEZE_DEMO_HANDLERS=true"}, c.env...), append([]string{"worker"}, c.flags...)...)
		if said.code != c.code || !strings.Contains(said.err, c.says) || strings.Count(said.err, "\n") != 1 {
			t.Errorf("%v %v: exit code %d: %s", c.env, c.flags, said.code, said.err)
		}
	}
}
