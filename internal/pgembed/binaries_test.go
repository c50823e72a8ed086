package pgembed

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/matryer/is"
)

// ours returns the folder that contains the binaries used by all other tests.
func ours(t *testing.T) string {
	t.Helper()
	is := is.New(t)
	as, err := accountFor("")
	is.NoErr(err)
	dir, err := findBinaries(t.Context(), Options{}, as, "")
	is.NoErr(err)
	return dir
}

func TestBinarySearchLocations(t *testing.T) {
	is := is.New(t)
	bin := ours(t)
	link := t.TempDir() // a PATH folder that contains only links
	is.NoErr(os.Symlink(filepath.Join(bin, "initdb"), filepath.Join(link, "initdb")))
	config := t.TempDir() // a PATH folder that contains only pg_config
	is.NoErr(os.WriteFile(filepath.Join(config, "pg_config"), []byte("#!/bin/sh\necho "+bin+"\n"), 0o755))
	for _, p := range []places{
		{path: []string{bin}},
		{path: []string{"/nonexistent", link}},
		{path: []string{config}},
		{globs: []string{filepath.Dir(filepath.Dir(bin)) + "/*/" + filepath.Base(bin)}},
	} {
		found := p.candidates(t.Context())
		is.True(len(found) >= 1)
		real, err := filepath.EvalSymlinks(bin)
		is.NoErr(err)
		is.True(found[0] == bin || found[0] == real)
	}
}

func TestBinarySearchNewestFirst(t *testing.T) {
	is := is.New(t)
	root := t.TempDir()
	for _, version := range []string{"9.6", "14", "17"} {
		bin := filepath.Join(root, version, "bin")
		is.NoErr(os.MkdirAll(bin, 0o755))
		for _, name := range []string{"postgres", "initdb"} {
			is.NoErr(os.WriteFile(filepath.Join(bin, name), nil, 0o755))
		}
	}
	found := (&places{globs: []string{root + "/*/bin"}}).candidates(t.Context())
	is.Equal(found, []string{root + "/17/bin", root + "/14/bin", root + "/9.6/bin"})
}

func TestConfiguredBinaryFolder(t *testing.T) {
	is := is.New(t)
	bin := ours(t)
	s := start(t, Options{BinDir: bin})
	is.Equal(s.BinDir(), bin)

	_, err := Start(t.Context(), Options{BinDir: t.TempDir()})
	is.True(err != nil && strings.Contains(err.Error(), "initdb does not exist"))

	t.Setenv("PGBIN", t.TempDir())
	_, err = Start(t.Context(), Options{})
	is.True(err != nil && strings.Contains(err.Error(), "PGBIN"))
}

func TestUnsuitableBinaryVersions(t *testing.T) {
	is := is.New(t)
	me := account{}
	bin := t.TempDir()
	is.NoErr(os.WriteFile(bin+"/initdb", nil, 0o755))
	is.NoErr(os.WriteFile(bin+"/postgres", []byte("#!/bin/sh\necho 'postgres (PostgreSQL) 13.9 (Test)'\n"), 0o755))
	err := checkPrograms(t.Context(), bin, me, "")
	is.True(err != nil && strings.Contains(err.Error(), "older than 14"))
	err = checkPrograms(t.Context(), ours(t), me, "99")
	is.True(err != nil && strings.Contains(err.Error(), "written by version 99"))
}

func TestMissingBinariesError(t *testing.T) {
	is := is.New(t)
	unreachable := httptest.NewServer(nil)
	unreachable.Close()
	t.Setenv("PGBIN", "")
	_, err := Start(t.Context(), Options{places: &places{}, CacheDir: t.TempDir(), Repository: unreachable.URL})
	is.True(errors.Is(err, ErrNoBinaries))
	for _, way := range []string{"DATABASE_URL", "apt-get install postgresql", "internet"} {
		is.True(strings.Contains(err.Error(), way)) // the error names all three ways
	}
	is.True(!strings.Contains(err.Error(), "\n")) // the error is one line
}

// This test packs the machine's binaries in the repository's format and then downloads them.
func TestBinariesAreDownloadedOnce(t *testing.T) {
	is := is.New(t)
	t.Setenv("PGBIN", "")
	var fetches atomic.Int32
	archive := pack(t, ours(t))
	repository := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".sha256") {
			fmt.Fprintf(w, "%x", sha256.Sum256(archive))
			return
		}
		fetches.Add(1)
		_, _ = w.Write(archive)
	}))
	defer repository.Close()

	o := Options{places: &places{}, CacheDir: openDir(t), Repository: repository.URL}
	s := start(t, o)
	is.True(strings.HasPrefix(s.BinDir(), o.CacheDir))
	is.Equal(ask(t, s.URL(), "SELECT 'up'"), "up")
	start(t, o)
	is.Equal(fetches.Load(), int32(1)) // the second start uses the cache
	left, err := filepath.Glob(o.CacheDir + "/*")
	is.NoErr(err)
	is.Equal(len(left), 2) // the binaries and the lock file, but no archive
}

func TestBrokenBinaryDownload(t *testing.T) {
	is := is.New(t)
	t.Setenv("PGBIN", "")
	repository := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "not an archive")
	}))
	defer repository.Close()
	o := Options{places: &places{}, CacheDir: t.TempDir(), Repository: repository.URL}
	_, err := Start(t.Context(), o)
	is.True(errors.Is(err, ErrNoBinaries))
	left, err := filepath.Glob(o.CacheDir + "/postgresql*")
	is.NoErr(err)
	is.Equal(len(left), 0)
}

func TestBinaryDownloadChecksumMismatch(t *testing.T) {
	is := is.New(t)
	t.Setenv("PGBIN", "")
	for sum, complaint := range map[string]string{strings.Repeat("0", 64): "checksums do not match", fmt.Sprintf("%x", sha256.Sum256([]byte("not an archive"))): "not a valid zip file"} {
		repository := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, ".sha256") {
				fmt.Fprint(w, sum)
				return
			}
			fmt.Fprint(w, "not an archive")
		}))
		defer repository.Close()
		_, err := Start(t.Context(), Options{places: &places{}, CacheDir: t.TempDir(), Repository: repository.URL})
		is.True(errors.Is(err, ErrNoBinaries))
		if !strings.Contains(err.Error(), complaint) {
			t.Errorf("%v does not contain %q", err, complaint)
		}
	}
}

// pack returns an archive in the repository's format: a zip file that contains a tar.xz of bin, lib and share. A relocated PostgreSQL looks
// for share next to bin; a distribution's build falls back to its original location.
func pack(t *testing.T, bin string) []byte {
	t.Helper()
	is := is.New(t)
	if _, err := exec.LookPath("xz"); err != nil {
		t.Skip("needs xz to make an archive")
	}
	txz := filepath.Join(t.TempDir(), "postgres.txz")
	tar := exec.Command("tar", "-C", filepath.Dir(bin), "--use-compress-program=xz -0 -T2", "--exclude=bitcode", "-chf", txz,
		filepath.Base(bin)+"/postgres", filepath.Base(bin)+"/initdb", filepath.Base(bin)+"/pg_ctl", "lib")
	out, err := tar.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	content, err := os.ReadFile(txz)
	is.NoErr(err)
	var archive bytes.Buffer
	z := zip.NewWriter(&archive)
	f, err := z.Create("postgres.txz")
	is.NoErr(err)
	_, err = f.Write(content)
	is.NoErr(err)
	is.NoErr(z.Close())
	return archive.Bytes()
}
