package mutant

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"

	"github.com/matryer/is"
)

func TestEveryMutantIsListedOnceAndSaysWhatItDoes(t *testing.T) {
	is := is.New(t)
	file, err := parser.ParseFile(token.NewFileSet(), "mutant.go", nil, parser.ParseComments)
	is.NoErr(err)
	var declared []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		name, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		is.NoErr(err)
		is.True(spec.Comment != nil) // one line on what the mistake is
		declared = append(declared, name)
		return true
	})
	is.Equal(Names(), declared)                                                          // in the same order
	is.Equal(len(slices.Compact(slices.Sorted(slices.Values(declared)))), len(declared)) // none twice
}

func TestWithoutAChoiceNothingIsWrong(t *testing.T) {
	is := is.New(t)
	for _, name := range Names() {
		is.True(!Is(name)) // no mistake unless it is asked for
	}
}
