package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

// This test runs the Python example. It is skipped unless gRPC for Python is installed (Debian: python3-grpcio protobuf-compiler
// protobuf-compiler-grpc libprotobuf-dev).
func TestPythonWorkerExample(t *testing.T) {
	is := is.New(t)
	python := ""
	for _, candidate := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(candidate, "-c", "import grpc, google.protobuf").Run() == nil {
			python = candidate
		}
	}
	_, noTypes := os.Stat("/usr/include/google/protobuf/duration.proto")
	plugin, err := exec.LookPath("grpc_python_plugin")
	if python == "" || err != nil || noTypes != nil {
		t.Skip("this machine has no grpcio for python3, or nothing that generates code for it")
	}
	dir := t.TempDir()
	source, err := filepath.Abs("../examples/python-worker/worker.py")
	is.NoErr(err)
	proto, err := filepath.Abs("../remote")
	is.NoErr(err)
	generate := exec.Command("protoc", "-I", proto, "-I", "/usr/include", "--python_out", dir, "--grpc_python_out", dir, "--plugin=protoc-gen-grpc_python="+plugin, "trapeze/v1/workers.proto")
	if said, err := generate.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	db := database{t, pgtest.URL(t)}
	p := dispatcher(t, db)
	w := exec.Command(python, source, strings.TrimPrefix(p.HTTP, "http://"))
	w.Env, w.Stderr = append(os.Environ(), "PYTHONPATH="+dir), os.Stderr
	is.NoErr(w.Start())
	defer func() {
		_ = w.Process.Kill()
		_ = w.Wait()
	}()
	id := db.enqueue("py.upper", "--args", `{"text":"flying"}`)
	is.Equal(string(db.inState(id, job.Succeeded).Result), `{"text":"FLYING"}`)
	id = db.enqueue("py.upper", "--args", `{}`)
	is.True(strings.Contains(*db.inState(id, job.Failed).Error, "KeyError")) // a Python exception becomes the job's error
}
