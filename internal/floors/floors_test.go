package floors

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/matryer/is"
)

const module = "github.com/trapeze-run/trapeze"

// floor defines the imports that are allowed for the package in a folder.
type floor struct {
	folder  string // cmd/* matches every folder directly in cmd
	imports string // folders of this module, separated by spaces; * means all folders listed above it
	tests   string // additional folders that its tests may import

	// standardOnly means that the package may import only packages of the standard library and of this module.
	standardOnly bool
	// noDatabase means that the package must not import a database driver, because it runs in programs that cannot reach a database.
	noDatabase bool
	// testOnly means that the package may import testing, and that only tests may import the package.
	testOnly bool
}

// plan lists the layers from the bottom up. A folder may only import folders listed before it.
var plan = []floor{
	// basic types, instruments, schema
	{folder: "job", standardOnly: true},
	{folder: "internal/failpoint", standardOnly: true},
	{folder: "internal/routine", imports: "job", standardOnly: true}, // goroutines: signals, waits, group commits, panics as errors, handlers without activity
	{folder: "internal/fleet", imports: "internal/routine"},          // what a pod may conclude about the others: trust in leases, turns after a notification
	{folder: "internal/faultnet", testOnly: true},                    // network faults on demand
	{folder: "migrations"},
	{folder: "internal/text", imports: "job", standardOnly: true}, // what users read and type: counts, times, ids, shell words, JSON, cursors
	{folder: "internal/dburl"},                                    // connection strings
	{folder: "internal/envvar", imports: "internal/failpoint"},    // environment variables: names, types, defaults
	{folder: "internal/schema", imports: "migrations"},            // the schema version that this program needs

	// database access and timing
	{folder: "internal/store", imports: "job internal/failpoint internal/text internal/dburl internal/routine internal/fleet", tests: "internal/telemetry"},
	{folder: "internal/telemetry", imports: "job internal/store internal/routine"},                                          // metrics, counts of finished jobs, spans, log keys
	{folder: "internal/failures", imports: "job"},                                                                           // groups of failed jobs
	{folder: "internal/store/view", imports: "job internal/failures internal/text internal/telemetry internal/store"},       // queries for users
	{folder: "internal/store/upkeep", imports: "job internal/telemetry internal/store"},                                     // statements for maintenance
	{folder: "internal/store/admin", imports: "job internal/text internal/store internal/store/view internal/store/upkeep"}, // changes by operators
	{folder: "internal/store/outbox", imports: "job internal/store", tests: "internal/store/admin"},                         // jobs that another engine runs
	{folder: "scheduler", imports: "job internal/store internal/store/admin internal/store/view internal/store/upkeep internal/failpoint internal/telemetry internal/routine"},
	{folder: "internal/access", imports: "job internal/text"}, // permissions
	{folder: "internal/journal", imports: "job internal/store internal/routine internal/telemetry"},
	{folder: "internal/slots", imports: "job internal/store internal/store/admin internal/store/view internal/store/upkeep internal/routine"},
	{folder: "internal/doctor", imports: "job internal/text internal/store internal/store/view internal/store/upkeep internal/telemetry scheduler"}, // findings and remedies
	{folder: "internal/maintenance", imports: "job internal/store internal/store/admin internal/store/view internal/store/upkeep internal/telemetry internal/routine scheduler"},

	// the real PostgreSQL for tests and for a quick start
	{folder: "internal/migrate", imports: "migrations internal/dburl internal/schema"},
	{folder: "internal/pgembed", tests: "internal/pgembed"},
	{folder: "internal/pgtest", imports: "internal/faultnet internal/migrate internal/pgembed", testOnly: true},
	{folder: "internal/pgtest/with", imports: "internal/pgtest", testOnly: true},        // one server for all packages' tests
	{folder: "internal/store/plantest", imports: "job internal/pgtest", testOnly: true}, // query plans, and the rows that they read
	{folder: "internal/floors", tests: "api internal/pgtest internal/telemetry"},

	// the live feed, which reads from the database and publishes on the bus; the engine runs it, and the API serves it
	{folder: "internal/feed", imports: "internal/text job internal/store internal/store/admin internal/store/view internal/store/upkeep internal/telemetry internal/routine"},

	// the engine
	{folder: "internal/identity", imports: "job internal/fleet internal/journal internal/routine internal/slots internal/store internal/store/view internal/telemetry"},                                                                                                                                                                                        // what finding and running one identity's jobs share
	{folder: "poller", imports: "job internal/failpoint internal/fleet internal/identity internal/routine internal/slots internal/store internal/telemetry"},                                                                                                                                                                                                   // finds the work: hands back, recovers, promotes, admits, claims
	{folder: "internal/work", imports: "internal/text job internal/store internal/routine"},                                                                                                                                                                                                                                                                    // converts jobs that enter or leave the engine
	{folder: "internal/engine", imports: "job internal/telemetry internal/work internal/identity internal/fleet internal/routine internal/store internal/store/admin internal/store/view internal/failpoint internal/journal internal/slots poller"},                                                                                                           // runs and finishes one identity's jobs, and hands over to their next steps
	{folder: "internal/pod", imports: "job internal/doctor internal/telemetry internal/work internal/engine internal/identity internal/store internal/store/admin internal/store/outbox internal/store/view internal/store/upkeep internal/feed internal/schema internal/dburl internal/routine internal/fleet internal/slots scheduler internal/maintenance"}, // one engine in the fleet: LISTEN, schedules, maintenance, feed
	{folder: "internal/inside", imports: "internal/feed internal/store internal/pod internal/text"},                                                                                                                                                                                                                                                            // parts of a Runner that only this module's packages need
	{folder: "runner/admin", imports: "job internal/work internal/engine internal/routine internal/store internal/store/admin internal/store/view internal/telemetry internal/inside internal/pod scheduler"},                                                                                                                                                  // the commands of operators, for programs in Go
	{folder: "runner", imports: "job internal/work internal/engine internal/identity internal/inside internal/text internal/schema internal/store internal/store/admin internal/store/view internal/store/upkeep internal/feed internal/failpoint internal/telemetry internal/dburl internal/routine internal/slots internal/pod poller scheduler runner/admin", tests: "internal/store/outbox"},

	{folder: "runner/metrics", imports: "runner internal/inside internal/telemetry"},                                       // the only package that links the Prometheus client
	{folder: "runner/migrate", imports: "runner internal/inside internal/migrate"},                                         // the only package that links goose
	{folder: "runner/env", imports: "internal/dburl internal/envvar internal/schema internal/store runner runner/migrate"}, // runner options and the pool, configured from the environment

	{folder: "internal/podtest", imports: "job runner runner/metrics internal/inside internal/pgtest internal/store/view", testOnly: true},                                                                                           // pods for the tests of runner and remote/internal/host
	{folder: "runner/runnertest", imports: "job internal/work internal/engine internal/routine internal/store internal/store/admin internal/store/view internal/store/upkeep internal/inside runner runner/migrate", testOnly: true}, // for the tests of host programs

	// entry points, which never import each other
	{folder: "handlers", imports: "runner", tests: "internal/inside"},
	{folder: "api/ui", imports: "job internal/doctor internal/text internal/failures internal/store internal/store/admin internal/store/view internal/store/upkeep internal/access"}, // the dashboard's pages
	{folder: "api", imports: "job internal/text internal/doctor internal/failures runner runner/metrics internal/store internal/store/admin internal/store/view internal/store/upkeep internal/feed internal/access internal/telemetry api/ui internal/inside runner/admin", tests: "internal/store/outbox"},
	{folder: "api/env", imports: "internal/envvar api"}, // API options from the environment
	{folder: "remote/remotepb"},
	{folder: "remote/internal/host", imports: "job internal/work internal/engine internal/identity internal/pod internal/store internal/routine internal/slots internal/telemetry internal/fleet", tests: "internal/inside internal/store/view poller runner"}, // sessions of remote workers on a pod
	{folder: "remote/server", imports: "job internal/work internal/engine internal/inside runner internal/telemetry internal/routine remote/internal/host remote/remotepb"},
	{folder: "remote/worker", imports: "job internal/work internal/engine internal/inside runner internal/telemetry internal/routine remote/remotepb", noDatabase: true},
	{folder: "remote", imports: "job runner internal/store internal/store/admin internal/store/view internal/store/upkeep remote/remotepb remote/server remote/worker internal/inside", testOnly: true}, // tests that need both ends

	// the command line
	{folder: "internal/cli", imports: "api api/env job runner runner/env remote/server internal/dburl internal/doctor internal/envvar internal/inside internal/migrate internal/pgembed internal/schema internal/store internal/store/admin internal/store/view internal/store/upkeep internal/telemetry internal/text"}, // what commands share

	// top layer
	{folder: "cmd/app", imports: "api internal/text job runner remote/worker internal/cli internal/failures internal/migrate internal/schema runner/migrate internal/store/admin internal/store/view scheduler"},                        // the commands, for a program with its own handlers
	{folder: "internal/cli/program", imports: "cmd/app handlers job runner internal/text internal/migrate internal/pgembed internal/store internal/store/admin internal/store/view internal/store/upkeep internal/cli internal/inside"}, // the command line of trapeze itself
	{folder: "examples/orders", imports: "runner runner/migrate internal/pgembed", tests: "runner/runnertest"},                                                                                                                          // embeds PostgreSQL
	{folder: "examples/*", imports: "runner handlers runner/env runner/migrate api api/env cmd/app remote/worker", tests: "runner/runnertest"},
	{folder: "cmd/*", imports: "*"},
	{folder: "e2e", imports: "*", testOnly: true}, // tests of the program as a process
}

// forTests lists additional packages that the tests of every package may import.
var forTests = []string{"internal/failpoint", "internal/faultnet", "internal/migrate", "internal/pgembed", "internal/pgtest", "internal/podtest", "internal/store/plantest"}

// neverLinked lists the packages that must not be linked into any program of this module.
var neverLinked = []string{"testing", "github.com/matryer/is", "pgregory.net/rapid"}

func TestImportsPointDown(t *testing.T) {
	for file, imports := range importsOf(t, root(t)) {
		if _, ok := at(path.Dir(file)); !ok {
			continue // reported by TestPackagesInLayerTable
		}
		for _, imported := range imports {
			if wrong := judge(file, imported); wrong != "" {
				t.Errorf("%s imports %s: %s", file, imported, wrong)
			}
		}
	}
}

func TestPackagesInLayerTable(t *testing.T) {
	unknown := map[string]bool{}
	for file := range importsOf(t, root(t)) {
		if _, ok := at(path.Dir(file)); !ok {
			unknown[path.Dir(file)] = true
		}
	}
	for folder := range unknown {
		t.Errorf("%s is not on the plan: add it to the table in internal/floors/floors_test.go", folder)
	}
}

func TestThePlanItselfPointsDown(t *testing.T) {
	is := is.New(t)
	var below []string
	for _, f := range plan {
		is.True(!slices.Contains(below, f.folder)) // no folder is listed twice
		for _, imported := range strings.Fields(f.imports) {
			is.True(imported == "*" || slices.Contains(below, imported)) // only folders listed above f are imported
		}
		below = append(below, f.folder)
	}
}

// The source tree contains no forbidden imports, so judge is tested with invented ones.
func TestForbiddenArrowsAreFound(t *testing.T) {
	for _, c := range []struct{ file, imported, wrong string }{
		{"job/state.go", module + "/runner", "not on its floor"},
		{"job/state.go", "github.com/jackc/pgx/v5", "standard library only"},
		{"job/state_test.go", "github.com/matryer/is", ""},
		{"job/state_test.go", module + "/internal/pgtest", ""},
		{"runner/claim.go", module + "/internal/store", ""},
		{"runner/claim.go", module + "/internal/pgtest", "for tests only"},
		{"runner/claim.go", module + "/internal/pgembed", "not on its floor"},
		{"runner/claim.go", "testing", "for tests only"},
		{"runner/claim.go", module + "/runner/runnertest", "for tests only"},
		{"runner/runnertest/harness.go", "testing", ""},
		{"runner/runnertest/harness.go", module + "/internal/pgtest", "for tests only"},
		{"internal/podtest/tables.go", module + "/internal/pgtest", ""},
		{"runner/claim_test.go", module + "/api", "not on its floor"},
		{"internal/pgtest/wait.go", "testing", ""},
		{"handlers/ingest.go", module + "/job", "not on its floor"},
		{"handlers/ingest.go", module + "/api", "not on its floor"},
		{"remote/worker/worker.go", "github.com/jackc/pgx/v5/pgxpool", "opens no database"},
		{"cmd/trapeze/main.go", module + "/internal/pgembed", ""},
		{"cmd/trapeze/main.go", module + "/internal/pgtest", "for tests only"},
		{"cmd/trapeze/main.go", module + "/tools/torture", "not on the plan"},
		{"e2e/main_test.go", module + "/tools/torture", "not on the plan"},
		{"cmd/trapeze/main.go", module + "/examples/embed", ""},
		{"somewhere/new.go", module + "/job", "not on the plan"},
	} {
		t.Run(c.file+" "+path.Base(c.imported), func(t *testing.T) {
			is := is.New(t)
			got := judge(c.file, c.imported)
			is.True(c.wrong == "" && got == "" || c.wrong != "" && strings.Contains(got, c.wrong)) // judge returned the expected verdict
		})
	}
}

// judge returns the objection to an import, or an empty string if the import is allowed.
func judge(file, imported string) string {
	here, ok := at(path.Dir(file))
	if !ok {
		return "its folder is not on the plan"
	}
	isTest := strings.HasSuffix(file, "_test.go")
	folder, isOurs := strings.CutPrefix(imported, module+"/")
	switch {
	case !isOurs && imported != module:
		switch {
		case isTest:
			return ""
		case !here.testOnly && within(imported, neverLinked):
			return "that is for tests only, and would be in our users' programs"
		case here.standardOnly && strings.Contains(strings.Split(imported, "/")[0], "."):
			return "this package uses the standard library only"
		case here.noDatabase && within(imported, []string{"github.com/jackc", "database/sql"}):
			return "this package opens no database"
		}
		return ""
	case path.Dir(file) == folder: // an external test of the same package
		return ""
	case isTest && slices.Contains(strings.Fields(here.tests), folder):
		return ""
	case isTest && (slices.Contains(forTests, folder) || strings.HasPrefix(folder, path.Dir(file)+"/")): // a subfolder is listed before its parent
		return ""
	}
	there, ok := at(folder)
	switch {
	case !ok:
		return "that folder is not on the plan"
	case there.testOnly && !(here.testOnly && slices.Contains(strings.Fields(here.imports), folder)):
		return "that is for tests only"
	case slices.Contains(strings.Fields(here.imports), there.folder):
		return ""
	case here.imports == "*" && here.folder != there.folder:
		return ""
	}
	return "not on its floor, see the table in internal/floors/floors_test.go; an upward need is a small interface " +
		"declared by the package that has the need"
}

// at returns the plan's entry for a folder.
func at(folder string) (floor, bool) {
	for _, f := range plan {
		if ok, _ := path.Match(f.folder, folder); ok {
			return f, true
		}
	}
	return floor{}, false
}

func within(imported string, packages []string) bool {
	return slices.ContainsFunc(packages, func(p string) bool {
		return imported == p || strings.HasPrefix(imported, p+"/")
	})
}

// importsOf returns the imports of every Go file below dir, for all build tags, keyed by the file's path relative to dir. It does not use
// go list, which considers only one set of tags at a time, and whose output go test would cache.
func importsOf(t *testing.T, dir string) map[string][]string {
	t.Helper()
	files := map[string][]string{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() {
			if name != dir && (base == "testdata" || base == "vendor" || base[0] == '.' || base[0] == '_') {
				return fs.SkipDir
			}
			if _, err := os.Stat(filepath.Join(name, "go.mod")); name != dir && err == nil {
				return fs.SkipDir // a separate module, such as the benchmarks of other job queues
			}
			return nil
		}
		if filepath.Ext(base) != ".go" {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		files[rel] = []string{}
		for _, spec := range parsed.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			files[rel] = append(files[rel], imported)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// root returns the folder that contains go.mod.
func root(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above the test")
		}
	}
}
