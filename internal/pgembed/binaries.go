package pgembed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
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
