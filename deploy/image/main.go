// Command image builds a container image of a Trapeze program without a container daemon, and writes it as a tarball for `docker load`,
// `podman load`, `crane push` or `skopeo copy`. Two builds of the same source produce the same bytes.
//
// The image is not built on a base image. It contains the static program, the certificate authorities of Mozilla's trust store, and an
// unprivileged user. The program includes the time zones (cmd/app imports time/tzdata).
package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// options describes an image.
type options struct {
	module  string // directory of the module that contains the program
	program string // package of the program, relative to the module
	release string // value of main.release, and the label org.opencontainers.image.version
	arch    string // such as amd64
	tag     string // name of the image
	out     string // path of the tarball
}

func main() {
	var o options
	flag.StringVar(&o.module, "C", ".", "directory of the module")
	flag.StringVar(&o.program, "program", "./cmd/trapeze", "package of the program, which must use cmd/app")
	flag.StringVar(&o.release, "release", "", "version of the program")
	flag.StringVar(&o.arch, "arch", "amd64", "architecture")
	flag.StringVar(&o.tag, "tag", "trapeze:latest", "name and tag of the image")
	flag.StringVar(&o.out, "o", "trapeze-image.tar", "path of the tarball")
	flag.Parse()
	size, err := build(o)
	if err != nil {
		log.Fatalf("image: %v", err)
	}
	fmt.Printf("%s: %s for linux/%s, %.1f MB compressed\n", o.out, o.tag, o.arch, float64(size)/1e6)
}

// user is the user and group ID under which the program runs. Both are called nonroot, as in distroless images.
const user = 65532

// file is a file in the image.
type file struct {
	name    string
	mode    int64
	content []byte
}

// build builds the program and its image, and returns the image's compressed size.
func build(o options) (size int64, err error) {
	tag, err := name.NewTag(o.tag)
	if err != nil {
		return 0, err
	}
	program, err := compile(o)
	if err != nil {
		return 0, err
	}
	// The files are in two layers, because only the program changes with each release.
	image := empty.Image
	for _, files := range [][]file{
		{
			{"etc/passwd", 0o444, fmt.Appendf(nil, "nonroot:x:%d:%d::/:/nonexistent\n", user, user)},
			{"etc/group", 0o444, fmt.Appendf(nil, "nonroot:x:%d:\n", user)},
			{"etc/ssl/certs/ca-certificates.crt", 0o444, authorities()},
		},
		{{"trapeze", 0o555, program}},
	} {
		content, err := archive(files)
		if err != nil {
			return 0, err
		}
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }, tarball.WithCompressionLevel(9))
		if err != nil {
			return 0, err
		}
		if image, err = mutate.AppendLayers(image, layer); err != nil {
			return 0, err
		}
		compressed, err := layer.Size()
		if err != nil {
			return 0, err
		}
		size += compressed
	}
	config, err := image.ConfigFile()
	if err != nil {
		return 0, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", o.arch
	config.Config = v1.Config{
		User:         fmt.Sprintf("%d:%d", user, user),
		Entrypoint:   []string{"/trapeze"},
		Cmd:          []string{"serve"},
		ExposedPorts: map[string]struct{}{"8080/tcp": {}},
		StopSignal:   "SIGTERM",
		// This checks liveness, not readiness. Some orchestrators restart unhealthy containers, and restarting a pod that is merely not
		// ready would only cancel its running handlers.
		Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "/trapeze", "ping"}, Interval: 10 * time.Second, Timeout: 5 * time.Second, StartPeriod: 10 * time.Second, Retries: 3},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "trapeze",
			"org.opencontainers.image.version":  o.release,
			"org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.source":   "https://github.com/trapeze-run/trapeze",
		},
	}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return 0, err
	}
	if err := os.MkdirAll(filepath.Dir(o.out), 0o755); err != nil {
		return 0, err
	}
	return size, tarball.WriteToFile(o.out, tag, image)
}

// compile returns the statically linked program. The build is reproducible, because the program contains neither local paths nor the state
// of the repository.
func compile(o options) ([]byte, error) {
	dir, err := os.MkdirTemp("", "trapeze-image-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "trapeze")
	c := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -X main.release="+o.release, "-o", out, o.program)
	c.Dir, c.Stdout, c.Stderr = o.module, os.Stdout, os.Stderr
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+o.arch, "GOFLAGS=-mod=readonly")
	if err := c.Run(); err != nil {
		return nil, fmt.Errorf("build %s: %w", o.program, err)
	}
	return os.ReadFile(out)
}

// authorities returns the certificate authorities in PEM. It omits authorities with restrictions that PEM cannot express.
func authorities() []byte {
	var all bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&all, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // writes to a buffer never fail
		}
	}
	return all.Bytes()
}

// archive returns a layer with the files and their directories. They all belong to root, and their modification times are zero.
func archive(files []file) ([]byte, error) {
	var buffer bytes.Buffer
	w, made := tar.NewWriter(&buffer), map[string]bool{".": true}
	add := func(h tar.Header, content []byte) error {
		h.Format, h.ModTime = tar.FormatUSTAR, time.Unix(0, 0)
		if err := w.WriteHeader(&h); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	}
	var parents func(dir string) error
	parents = func(dir string) error {
		if made[dir] {
			return nil
		}
		made[dir] = true
		if err := parents(filepath.Dir(dir)); err != nil {
			return err
		}
		return add(tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}, nil)
	}
	for _, f := range files {
		if err := parents(filepath.Dir(f.name)); err != nil {
			return nil, err
		}
		if err := add(tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.content))}, f.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buffer.Bytes(), nil
}
