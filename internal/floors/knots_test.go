package floors

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"testing"

	"github.com/matryer/is"
)

// layered lists the large packages whose files must form layers.
var layered = []string{"api", "api/ui", "cmd/app", "internal/engine", "internal/store/admin", "internal/store/view", "job", "runner"}

// TestLargePackageFileLayers fails if more than half of the files of a large package are in one dependency cycle, because none
// of these files could be understood without all the others. It also fails if the files depend on more than five others on average.
func TestLargePackageFileLayers(t *testing.T) {
	imports := importing(t, layered)
	for _, name := range layered {
		uses := references(t, imports, name)
		if knot := largestKnot(uses); 2*len(knot) > len(uses) {
			t.Errorf("%s: %d of %d files depend on each other: %v", name, len(knot), len(uses), knot)
		}
		ties := 0
		for _, used := range uses {
			ties += len(used)
		}
		if ties > 5*len(uses) {
			t.Errorf("%s: %d files depend on %d others in total", name, len(uses), ties)
		}
	}
}

func TestFileDependencyCycleDetection(t *testing.T) {
	is := is.New(t)
	is.Equal(largestKnot(map[string]map[string]bool{
		"a": {"b": true}, "b": {"c": true}, "c": {"a": true, "d": true}, "d": {"e": true}, "e": {"d": true}, "f": {"a": true},
	}), []string{"a", "b", "c"})
}

// references returns, for each file of a package, the other files in which the functions, methods, types and other top-level names that it
// uses are declared.
func references(t *testing.T, imports types.Importer, folder string) map[string]map[string]bool {
	t.Helper()
	is := is.New(t)
	built, err := build.ImportDir(filepath.Join(root(t), folder), 0)
	is.NoErr(err)
	set, uses := token.NewFileSet(), map[string]map[string]bool{}
	var files []*ast.File
	for _, name := range built.GoFiles {
		file, err := parser.ParseFile(set, filepath.Join(built.Dir, name), nil, parser.SkipObjectResolution)
		is.NoErr(err)
		files, uses[name] = append(files, file), map[string]bool{}
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	p, err := (&types.Config{Importer: imports}).Check(module+"/"+folder, set, files, info)
	is.NoErr(err)
	for at, used := range info.Uses {
		method, _ := used.(*types.Func)
		if used.Pkg() != p || used.Parent() != p.Scope() && (method == nil || method.Signature().Recv() == nil) {
			continue
		}
		from, to := filepath.Base(set.Position(at.Pos()).Filename), filepath.Base(set.Position(used.Pos()).Filename)
		if from != to {
			uses[from][to] = true
		}
	}
	return uses
}

// largestKnot returns the largest set of files that all depend on each other, directly or indirectly.
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
