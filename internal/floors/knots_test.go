package floors

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// layered lists the large packages whose files form layers.
var layered = []string{"api", "api/ui", "cmd/app", "internal/engine", "internal/store/admin", "internal/store/view", "job", "runner"}

// TestTheFilesOfALargePackageFormLayers fails if most files of a large package depend on each other, directly or indirectly. A reader could
// not understand any of these files without all the others.
func TestTheFilesOfALargePackageFormLayers(t *testing.T) {
	for _, name := range layered {
		uses := references(t, filepath.Join(root(t), name))
		if knot := largestKnot(uses); 2*len(knot) > len(uses) {
			t.Errorf("%s: %d of %d files depend on each other: %v", name, len(knot), len(uses), knot)
		}
	}
}

func TestAKnotOfFilesIsFound(t *testing.T) {
	is := is.New(t)
	is.Equal(largestKnot(map[string]map[string]bool{
		"a": {"b": true}, "b": {"c": true}, "c": {"a": true, "d": true}, "d": {"e": true}, "e": {"d": true}, "f": {"a": true},
	}), []string{"a", "b", "c"})
}

// references returns, for each production file of a package, the files whose top-level names it uses. It ignores names that several files
// define, such as those of methods that several types share.
func references(t *testing.T, dir string) map[string]map[string]bool {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	files, definedIn := map[string]*ast.File{}, map[string][]string{}
	for _, path := range list {
		name := filepath.Base(path)
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "_test.go") || ast.IsGenerated(file) {
			continue
		}
		files[name] = file
		for _, decl := range file.Decls {
			for _, defined := range names(decl) {
				definedIn[defined] = append(definedIn[defined], name)
			}
		}
	}
	uses := map[string]map[string]bool{}
	for name, file := range files {
		uses[name] = map[string]bool{}
		imported := map[string]bool{}
		for _, i := range file.Imports {
			path := strings.Trim(i.Path.Value, `"`)
			imported[path[strings.LastIndex(path, "/")+1:]] = true
			if i.Name != nil {
				imported[i.Name.Name] = true
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr: // a name of another package
				x, ok := n.X.(*ast.Ident)
				return !ok || !imported[x.Name]
			case *ast.Ident:
				if in := definedIn[n.Name]; len(in) == 1 && in[0] != name {
					uses[name][in[0]] = true
				}
			}
			return true
		})
	}
	return uses
}

// names returns the names that a top-level declaration defines.
func names(decl ast.Decl) (list []string) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		return []string{d.Name.Name}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				list = append(list, s.Name.Name)
			case *ast.ValueSpec:
				for _, name := range s.Names {
					list = append(list, name.Name)
				}
			}
		}
	}
	return list
}

// largestKnot returns the largest set of files of which each depends on all others, directly or indirectly.
func largestKnot(uses map[string]map[string]bool) (largest []string) {
	reaches := map[string]map[string]bool{}
	for from := range uses {
		reached := map[string]bool{}
		for open := []string{from}; len(open) > 0; open = open[1:] {
			for to := range uses[open[0]] {
				if !reached[to] {
					reached[to] = true
					open = append(open, to)
				}
			}
		}
		reaches[from] = reached
	}
	for from := range uses {
		var knot []string
		for to := range reaches[from] {
			if reaches[to][from] {
				knot = append(knot, to)
			}
		}
		if slices.Sort(knot); len(knot) > len(largest) {
			largest = knot
		}
	}
	return largest
}
