package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"crypto/x509"
	"debug/elf"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const mostBytes = 25e6

// built builds the image of cmd/trapeze and returns the path of the tarball.
func built(t *testing.T) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "image.tar")
	size, err := build(options{module: "../..", program: "./cmd/trapeze", release: "v1.2.3", arch: "amd64", tag: "trapeze:test", out: out})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%.1f MB compressed", float64(size)/1e6)
	if size > mostBytes {
		t.Errorf("the image has %d bytes compressed, want at most %.0f", size, mostBytes)
	}
	return out
}

// contents returns the image's configuration and files.
func contents(t *testing.T, path string) (*v1.ConfigFile, map[string]*tar.Header, map[string][]byte) {
	t.Helper()
	is := is.New(t)
	image, err := tarball.ImageFromPath(path, nil)
	is.NoErr(err)
	config, err := image.ConfigFile()
	is.NoErr(err)
	headers, files := map[string]*tar.Header{}, map[string][]byte{}
	flat := mutate.Extract(image)
	defer flat.Close()
	for r := tar.NewReader(flat); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return config, headers, files
		}
		is.NoErr(err)
		headers[header.Name] = header
		files[header.Name], err = io.ReadAll(r)
		is.NoErr(err)
	}
}

func TestImageContents(t *testing.T) {
	is := is.New(t)
	first := built(t)
	config, headers, files := contents(t, first)
	var names []string
	for name, header := range headers {
		names = append(names, strings.TrimSuffix(name, "/"))
		is.Equal(header.Uid, 0)                // the program's user owns no files
		is.Equal(header.Mode&0o022, int64(0))  // and cannot write to any
		is.Equal(header.Mode&0o7000, int64(0)) // no setuid
	}
	slices.Sort(names)
	is.Equal(names, []string{"etc", "etc/group", "etc/passwd", "etc/ssl", "etc/ssl/certs", "etc/ssl/certs/ca-certificates.crt", "trapeze"}) // no shell

	program, err := elf.NewFile(bytes.NewReader(files["trapeze"]))
	is.NoErr(err)
	is.True(!slices.ContainsFunc(program.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })) // statically linked
	here, err := filepath.Abs("../..")
	is.NoErr(err)
	home, err := os.UserHomeDir()
	is.NoErr(err)
	is.True(!bytes.Contains(files["trapeze"], []byte(here)))
	is.True(!bytes.Contains(files["trapeze"], []byte(filepath.Join(home, "go")))) // the program contains no paths of this machine

	authorities, rest, valid := 0, files["etc/ssl/certs/ca-certificates.crt"], time.Now()
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		one, err := x509.ParseCertificate(block.Bytes)
		is.NoErr(err)
		is.True(one.IsCA)
		if one.NotAfter.After(valid) {
			authorities++
		}
	}
	is.Equal(len(bytes.TrimSpace(rest)), 0)
	is.True(authorities > 80)

	is.Equal(config.Config.User, "65532:65532")
	is.True(strings.HasPrefix(string(files["etc/passwd"]), "nonroot:x:65532:65532:"))
	is.Equal(config.OS+"/"+config.Architecture, "linux/amd64")
	is.Equal(config.Config.Labels["org.opencontainers.image.version"], "v1.2.3")

	again, err := os.ReadFile(built(t))
	is.NoErr(err)
	before, err := os.ReadFile(first)
	is.NoErr(err)
	is.True(bytes.Equal(again, before)) // both builds produce the same bytes
}

// container runs the image's commands on the image's files and as the image's user, who cannot write anywhere. It requires root.
type container struct {
	t      *testing.T
	config v1.Config
	root   string
	env    []string
}

func newContainer(t *testing.T, path string, env ...string) *container {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root may run a program in another root directory as another user")
	}
	is := is.New(t)
	config, headers, files := contents(t, path)
	root, err := os.MkdirTemp("", "trapeze-root-") // not t.TempDir, because other users cannot enter its parent directories
	is.NoErr(err)
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	is.NoErr(os.Chmod(root, 0o755))
	for name, header := range headers {
		at := filepath.Join(root, name)
		if header.Typeflag == tar.TypeDir {
			is.NoErr(os.MkdirAll(at, 0o755))
			continue
		}
		is.NoErr(os.MkdirAll(filepath.Dir(at), 0o755))
		is.NoErr(os.WriteFile(at, files[name], fs.FileMode(header.Mode)))
	}
	return &container{t, config.Config, root, append(slices.Clone(config.Config.Env), env...)}
}

// command returns a command that runs in the container. Without arguments, it returns the image's default command.
func (c *container) command(args ...string) *exec.Cmd {
	c.t.Helper()
	uid, gid, _ := strings.Cut(c.config.User, ":")
	id := func(text string) uint32 {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			c.t.Fatal(err)
		}
		return uint32(n)
	}
	argv := append(slices.Clone(c.config.Entrypoint), args...)
	if len(args) == 0 {
		argv = append(argv, c.config.Cmd...)
	}
	return &exec.Cmd{Path: argv[0], Args: argv, Dir: "/", Env: c.env, SysProcAttr: &syscall.SysProcAttr{
		Chroot: c.root, Credential: &syscall.Credential{Uid: id(uid), Gid: id(gid)},
	}}
}

func (c *container) run(args ...string) string {
	c.t.Helper()
	out, err := c.command(args...).CombinedOutput()
	if err != nil {
		c.t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return string(out)
}

// freePort returns a port that nothing listens on.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return port
}

func TestImageUserWithoutWritePermission(t *testing.T) {
	is := is.New(t)
	url := pgtest.EmptyURL(t)
	database, err := pgx.ParseConfig(url) // reads the password file, which does not exist in the container
	is.NoErr(err)
	c := newContainer(t, built(t), "DATABASE_URL="+url, "PGPASSWORD="+database.Password)
	c.run("migrate", "up")
	c.env = append(c.env, "TRAPEZE_DEMO_HANDLERS=true", "TRAPEZE_HTTP_ADDR=127.0.0.1:"+freePort(t))
	is.True(strings.HasPrefix(c.run("version"), "trapeze v1.2.3 "))
	is.True(strings.Contains(c.run("cron", "next", "30 2 * * *", "--zone", "Europe/Paris"), "02:30")) // time zones work without zone files

	serve := c.command()
	out, err := serve.StdoutPipe()
	is.NoErr(err)
	var log bytes.Buffer
	serve.Stderr = &log
	is.NoErr(serve.Start())
	t.Cleanup(func() { _ = serve.Process.Kill() })
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatalf("serve did not become ready: %v\n%s", serve.Wait(), &log)
	}
	var ready struct{ Ready bool }
	is.NoErr(json.Unmarshal(lines.Bytes(), &ready))
	is.True(ready.Ready)

	check := c.config.Healthcheck.Test
	is.Equal(check[:2], []string{"CMD", c.config.Entrypoint[0]}) // the health check needs no shell
	is.Equal(c.run(check[2:]...), "ok\n")
	is.Equal(c.run("ping", "--ready"), "ok\n")
	c.run("enqueue", "demo.noop", "--wait")

	is.Equal(c.config.StopSignal, "SIGTERM")
	is.NoErr(serve.Process.Signal(syscall.SIGTERM))
	is.NoErr(serve.Wait())                        // exit code 0
	is.True(c.command(check[2:]...).Run() != nil) // the health check fails once the pod has stopped
}
