package pgembed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	embedded "github.com/fergusstrange/embedded-postgres"
)

// downloadVersion is the version to download. The library must support it.
const downloadVersion = embedded.V18

// downloadWithin is the timeout for a download. On a network that drops packets, the library alone would wait forever.
const downloadWithin = 5 * time.Minute

// download returns the folder that contains the downloaded binaries, downloading them first if they are not in the cache.
func download(ctx context.Context, o Options) (string, error) {
	cache, err := cacheDir(o.CacheDir)
	if err != nil {
		return "", err
	}
	target := filepath.Join(cache, fmt.Sprintf("postgresql-%s-%s-%s", downloadVersion, runtime.GOOS, runtime.GOARCH))
	bin := filepath.Join(target, "bin")
	if isFile(filepath.Join(bin, "postgres")) {
		return bin, nil
	}

	ctx, cancel := context.WithTimeoutCause(ctx, downloadWithin, fmt.Errorf("not finished after %s", downloadWithin))
	defer cancel()
	// The library call cannot be interrupted, so its goroutine, which owns everything that it uses, may keep running after the timeout.
	fetched := make(chan error, 1)
	go func() { fetched <- fetch(cache, target, o.Repository) }()
	select {
	case err := <-fetched:
		return bin, err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// fetch downloads the binaries and unpacks them to target. It creates target either completely or not at all.
func fetch(cache, target, repository string) (err error) {
	lock, err := os.OpenFile(filepath.Join(cache, "download.lock"), os.O_CREATE|os.O_RDWR, 0o644) // #nosec G302 -- it is empty
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", cache, err)
	}
	if isFile(filepath.Join(target, "bin", "postgres")) {
		return nil // another process has already downloaded the binaries
	}

	work := target + ".part"
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if err := unpack(work, repository); err != nil {
		return err
	}
	unpacked := filepath.Join(work, "binaries")
	if err := openUp(unpacked); err != nil {
		return err
	}
	return os.Rename(unpacked, target)
}

// unpack makes the library unpack the binaries into work/binaries.
//
// The library offers the download only as the first part of starting a server, and its way of starting one works neither for root nor for
// servers that must die with their owners. unpack therefore makes the start fail: the data directory looks initialized but contains nothing
// from which a server could start. The runtime directory shows how far the library got, because the library creates it after unpacking the
// binaries and before starting the server.
func unpack(work, repository string) error {
	data, reached := filepath.Join(work, "nodata"), filepath.Join(work, "reached")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte(downloadVersion[:2]), 0o600); err != nil {
		return err
	}
	config := embedded.DefaultConfig().Version(downloadVersion).Port(0).Logger(io.Discard).
		CachePath(filepath.Join(work, "archive")).BinariesPath(filepath.Join(work, "binaries")).
		DataPath(data).RuntimePath(reached)
	if repository != "" {
		config = config.BinaryRepositoryURL(repository)
	}
	server := embedded.NewDatabase(config)
	err := server.Start()
	if err == nil {
		return errors.Join(errors.New("the library started a server without data"), server.Stop())
	}
	if _, statErr := os.Stat(reached); statErr == nil {
		return nil
	}
	return err
}

// openUp gives every user read access to everything below dir, and execute access to folders and programs, regardless of the umask.
func openUp(dir string) error {
	root, err := os.OpenRoot(dir) // a link created concurrently cannot lead outside dir
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm() | 0o444
		if d.IsDir() || mode&0o100 != 0 {
			mode |= 0o111
		}
		return root.Chmod(path, mode)
	})
}

// cacheDir creates and returns the folder for downloads.
func cacheDir(dir string) (string, error) {
	if dir == "" {
		base := "/var/cache"
		if os.Geteuid() != 0 {
			var err error
			if base, err = os.UserCacheDir(); err != nil {
				return "", fmt.Errorf("find the cache directory: %w", err)
			}
		}
		dir = filepath.Join(base, "trapeze")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o755) // #nosec G301 -- programs that an unprivileged user runs
}
