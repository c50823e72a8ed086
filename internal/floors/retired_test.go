package floors

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/telemetry"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// name is a name that users or other packages can see.
type name struct {
	text   string // the context and the full name, such as "go job.Blocker"
	word   string // the part that is checked
	isType bool
}

// schemaNamesSQL lists the relations, columns, functions, constraints and triggers of the schema.
const schemaNamesSQL = `
select c.relname::text from pg_class c where c.relnamespace = 'trapeze'::regnamespace
union select c.relname || '.' || a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid
where c.relnamespace = 'trapeze'::regnamespace and c.relkind in ('r', 'p', 'v') and a.attnum > 0 and not a.attisdropped
union select proname from pg_proc where pronamespace = 'trapeze'::regnamespace
union select conname from pg_constraint where connamespace = 'trapeze'::regnamespace
union select t.tgname from pg_trigger t join pg_class c on c.oid = t.tgrelid where c.relnamespace = 'trapeze'::regnamespace and not t.tgisinternal`

func TestRetiredWordsInNames(t *testing.T) {
	is := is.New(t)
	retired, still := map[string]bool{}, map[string]bool{}
	text, err := os.ReadFile("retired.txt")
	is.NoErr(err)
	for line := range strings.Lines(string(text)) {
		switch fields := strings.Fields(line); {
		case len(fields) == 0 || fields[0] == "#":
		case fields[0] == "!":
			still[strings.Join(fields[1:], " ")] = false
		default:
			retired[fields[0]] = true
		}
	}

	names := exportedNames(t)
	objects, err := pgtest.Pool(t).Query(t.Context(), schemaNamesSQL)
	is.NoErr(err)
	for _, object := range must(pgx.CollectRows(objects, pgx.RowTo[string])) {
		names = append(names, name{text: "sql " + object, word: object[strings.LastIndex(object, ".")+1:], isType: !strings.Contains(object, ".")})
	}
	metrics := telemetry.New()
	for _, m := range metrics.Set.Metrics() {
		for _, part := range append(m.Labels, m.Name) {
			names = append(names, name{text: "metric " + m.Name + " " + part, word: part, isType: true})
		}
	}
	for _, key := range logKeys(t) {
		names = append(names, name{text: "log " + key, word: key, isType: true})
	}
	for _, route := range api.Routes() {
		names = append(names, name{text: "route " + route.Method + " " + route.Path, word: route.Path, isType: true})
	}
	is.True(len(names) > 1000) // the names were actually read

	for _, n := range names {
		if !uses(retired, n) {
			continue
		}
		if _, known := still[n.text]; !known {
			t.Errorf("%s has a retired word: see internal/floors/retired.txt", n.text)
		}
		still[n.text] = true
	}
	for text, found := range still {
		if !found {
			t.Errorf("%s no longer exists: remove it from internal/floors/retired.txt", text)
		}
	}
}

var wordsOf = regexp.MustCompile(`[A-Z]+(?:[a-z]+|\b|_)|[A-Z]?[a-z]+`)

// uses reports whether a name contains a retired word in the singular or plural.
func uses(retired map[string]bool, n name) bool {
	return slices.ContainsFunc(wordsOf.FindAllString(n.word, -1), func(word string) bool {
		word = strings.ToLower(strings.TrimSuffix(word, "_"))
		one := strings.TrimSuffix(word, "s")
		return retired[word] || retired[one] || n.isType && (retired[word+"(type)"] || retired[one+"(type)"])
	})
}

// exportedNames returns the exported names in the module's packages, including fields and methods. It skips the examples, because they use
// the vocabulary of other domains.
func exportedNames(t *testing.T) (names []name) {
	is := is.New(t)
	dir := root(t)
	is.NoErr(filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		folder, _ := filepath.Rel(dir, filepath.Dir(file))
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (file == filepath.Join(dir, "tools", "peers") || slices.Contains([]string{".git", "node_modules", "examples", "testdata"}, entry.Name())):
			return filepath.SkipDir
		case filepath.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") || strings.HasSuffix(file, ".pb.go"):
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			return err
		}
		see := func(isType bool, ids ...*ast.Ident) {
			for _, id := range ids {
				if id.IsExported() {
					names = append(names, name{"go " + filepath.ToSlash(folder) + "." + id.Name, id.Name, isType})
				}
			}
		}
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				see(false, f.Name)
				continue
			}
			ast.Inspect(d, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.TypeSpec:
					see(true, n.Name)
				case *ast.ValueSpec:
					see(false, n.Names...)
				case *ast.Field:
					see(false, n.Names...)
				}
				return true
			})
		}
		return nil
	}))
	return names
}

// logKeys returns the log keys defined in internal/telemetry/keys.go.
func logKeys(t *testing.T) (keys []string) {
	is := is.New(t)
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root(t), "internal", "telemetry", "keys.go"), nil, 0)
	is.NoErr(err)
	ast.Inspect(parsed, func(n ast.Node) bool {
		if literal, ok := n.(*ast.BasicLit); ok {
			keys = append(keys, strings.Trim(literal.Value, `"`))
		}
		return true
	})
	is.True(len(keys) > 30)
	return keys
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
