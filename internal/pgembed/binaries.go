package pgembed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	embedded "github.com/fergusstrange/embedded-postgres"
)

// ErrNoBinaries is returned by [Start] if there is no usable PostgreSQL on this machine and none can be downloaded.
var ErrNoBinaries = errors.New("no PostgreSQL found")

// oldestVersion is the oldest supported major version.
const oldestVersion = 14

// places lists the locations in which PostgreSQL may be installed, in search order.
type places struct {
	path  []string // directories of PATH
	globs []string // patterns for package folders, which may match several versions
}

func usualPlaces() *places {
	return &places{
		path: filepath.SplitList(os.Getenv("PATH")),
		globs: []string{
			"/usr/lib/postgresql/*/bin",                          // Debian
			"/usr/pgsql-*/bin",                                   // Red Hat, the PostgreSQL project's packages
			"/opt/homebrew/opt/postgresql@*/bin",                 // Homebrew on Apple silicon
			"/usr/local/opt/postgresql@*/bin",                    // Homebrew on Intel
			"/opt/homebrew/opt/postgresql/bin",                   // Homebrew, unversioned
			"/usr/local/opt/postgresql/bin",                      //
			"/usr/local/pgsql/bin",                               // built from source
			"/Applications/Postgres.app/Contents/Versions/*/bin", // Postgres.app
		},
	}
}

// findBinaries returns a folder with initdb and postgres that the server's user can run. want is the major version that wrote the data, or
// empty for any version.
func findBinaries(ctx context.Context, o Options, as account, want string) (string, error) {
	for _, source := range []struct{ from, dir string }{{"Options.BinDir", o.BinDir}, {"PGBIN", os.Getenv("PGBIN")}} {
		if source.dir == "" {
			continue
		}
		// The user chose this folder, so silently using a different one would be confusing.
		if err := checkPrograms(ctx, source.dir, as, want); err != nil {
			return "", fmt.Errorf("%s is %s: %w", source.from, source.dir, err)
		}
		return source.dir, nil
	}

	where := o.places
	if where == nil {
		where = usualPlaces()
	}
	var why []error
	for _, dir := range where.candidates(ctx) {
		err := checkPrograms(ctx, dir, as, want)
		if err == nil {
			return dir, nil
		}
		why = append(why, fmt.Errorf("%s: %w", dir, err))
	}
	dir, err := download(ctx, o)
	if err == nil {
		if err = checkPrograms(ctx, dir, as, want); err == nil {
			return dir, nil
		}
	}
	why = append(why, fmt.Errorf("download: %w", err))
	return "", fmt.Errorf("%w on this machine and none could be downloaded. Three ways out: set DATABASE_URL to a running "+
		"PostgreSQL %d or newer; install its server programs, for example with apt-get install postgresql (or set PGBIN to "+
		"the folder with initdb and postgres); or let this machine reach the internet once, to download them (%w)",
		ErrNoBinaries, oldestVersion, joinErrors(why))
}

// candidates returns the folders that contain the required programs.
func (p *places) candidates(ctx context.Context) []string {
	var dirs []string
	for _, dir := range p.path {
		// A program in PATH may be a symbolic link into the folder that contains the other programs.
		for _, name := range []string{"postgres", "initdb", "pg_ctl"} {
			if real, err := filepath.EvalSymlinks(filepath.Join(dir, name)); err == nil {
				dirs = append(dirs, filepath.Dir(real))
			}
		}
		if out, err := exec.CommandContext(ctx, filepath.Join(dir, "pg_config"), "--bindir").Output(); err == nil {
			dirs = append(dirs, strings.TrimSpace(string(out)))
		}
	}
	for _, glob := range p.globs {
		found, _ := filepath.Glob(glob)
		slices.SortFunc(found, func(a, b string) int { return cmp.Compare(lastNumber(b), lastNumber(a)) })
		dirs = append(dirs, found...)
	}
	var unique []string
	for _, dir := range dirs {
		if filepath.IsAbs(dir) && isFile(filepath.Join(dir, "postgres")) && isFile(filepath.Join(dir, "initdb")) &&
			!slices.Contains(unique, dir) {
			unique = append(unique, dir)
		}
	}
	return unique
}

var versionNumber = regexp.MustCompile(`\d+`)

// lastNumber returns the last number in a folder's path, such as 15 in /usr/lib/postgresql/15/bin.
func lastNumber(dir string) int {
	all := versionNumber.FindAllString(dir, -1)
	if len(all) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(all[len(all)-1])
	return n
}

// checkPrograms returns an error if the programs in dir cannot be used.
func checkPrograms(ctx context.Context, dir string, as account, want string) error {
	for _, name := range []string{"initdb", "postgres"} {
		if !isFile(filepath.Join(dir, name)) {
			return fmt.Errorf("%s does not exist", name)
		}
	}
	out, err := run(ctx, as, "/", filepath.Join(dir, "postgres"), "--version")
	if err != nil {
		return fmt.Errorf("%s cannot run postgres: %w %s", as.name, err, strings.TrimSpace(out))
	}
	major := versionNumber.FindString(out) // "postgres (PostgreSQL) 15.18 (Debian …)"
	if n, _ := strconv.Atoi(major); n < oldestVersion {
		return fmt.Errorf("version %s is older than %d", major, oldestVersion)
	}
	if want != "" && major != want {
		return fmt.Errorf("version %s cannot read data written by version %s", major, want)
	}
	return nil
}

func isFile(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular()
}

// joinErrors joins errors into one line.
func joinErrors(errs []error) error {
	joined := errs[0]
	for _, err := range errs[1:] {
		joined = fmt.Errorf("%w; %w", joined, err)
	}
	return joined
}

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
