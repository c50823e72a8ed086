package floors

import (
	"encoding/json"
	"errors"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// public lists the packages that host programs import. The folders scheduler and poller are at the top because they are main parts of a pod;
// hosts use them only through runner.
var public = []string{"job", "runner", "runner/admin", "runner/runnertest", "handlers", "api", "remote/server", "remote/worker"}

// stillInternal lists the exported names that still mention an internal type. Entries may be removed but not added.
var stillInternal = []string{
	// Package api defines aliases for these types, because the dashboard's package, which api imports, needs them too.
	"api.KeysFile: internal/access.Signed",
	"api.Options.Authenticate: internal/access.Principal",
	"api.Options.TrustedProxies: internal/access.Proxies",
	"api.Principal: internal/access.Principal",
	"api.Proxies: internal/access.Proxies",
	"api.Route.Needs: internal/access.Permission",
	"api.Signed: internal/access.Signed",
	"api.TokenFile: internal/access.Tokens",
	"api.Tokens: internal/access.Tokens",
	"api.TrustedProxies: internal/access.Proxies",
}

// A host can neither name nor construct an internal type, so no exported signature may mention one.
func TestExportedSignatureInternalTypes(t *testing.T) {
	found := map[string]bool{}
	for _, p := range exported(t, public) {
		for _, name := range p.Scope().Names() {
			if o := p.Scope().Lookup(name); o.Exported() {
				for _, mention := range mentions(o) {
					found[strings.TrimPrefix(p.Path(), module+"/")+"."+mention] = true
				}
			}
		}
	}
	for mention := range found {
		if !slices.Contains(stillInternal, mention) {
			t.Error(mention)
		}
	}
	for _, mention := range stillInternal {
		if !found[mention] {
			t.Errorf("%s no longer exists: remove it from stillInternal", mention)
		}
	}
}

// exported loads packages from the export data that the go command produces.
func exported(t *testing.T, folders []string) (packages []*types.Package) {
	t.Helper()
	is := is.New(t)
	imports := importing(t, folders)
	for _, folder := range folders {
		p, err := imports.Import(module + "/" + folder)
		is.NoErr(err) // the export data can be read
		packages = append(packages, p)
	}
	return packages
}

// importing returns an importer for packages and everything that they import.
func importing(t *testing.T, folders []string) types.Importer {
	t.Helper()
	is := is.New(t)
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Export"}
	for _, folder := range folders {
		args = append(args, module+"/"+folder)
	}
	out, err := exec.CommandContext(t.Context(), "go", args...).Output()
	is.NoErr(err) // go list
	exports := map[string]string{}
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct{ ImportPath, Export string }
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		is.NoErr(err) // the list is JSON
		exports[strings.TrimPrefix(p.ImportPath, "vendor/")] = p.Export
	}
	return importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
}

// mentions returns the mentions of internal types in the exported parts of o, in the form "Name.Part: path.Type".
func mentions(o types.Object) (found []string) {
	check := func(name string, t types.Type) {
		for _, inside := range internalIn(t) {
			found = append(found, name+": "+inside)
		}
	}
	check(o.Name(), o.Type())
	named, ok := o.Type().(*types.Named)
	if _, isType := o.(*types.TypeName); !isType || !ok {
		return found
	}
	for m := range types.NewMethodSet(types.NewPointer(named)).Methods() {
		if m.Obj().Exported() {
			check(o.Name()+"."+m.Obj().Name(), m.Obj().Type())
		}
	}
	if s, ok := named.Underlying().(*types.Struct); ok {
		for f := range s.Fields() {
			if f.Exported() {
				check(o.Name()+"."+f.Name(), f.Type())
			}
		}
	} else {
		check(o.Name(), named.Underlying())
	}
	return found
}

// internalIn returns the internal types that t is composed of. It does not descend into other named types, because each of them is checked
// where it is declared.
func internalIn(t types.Type) (found []string) {
	of := func(all ...types.Type) {
		for _, one := range all {
			found = append(found, internalIn(one)...)
		}
	}
	switch t := t.(type) {
	case *types.Alias:
		of(types.Unalias(t))
	case *types.Named:
		if p := t.Obj().Pkg(); p != nil && strings.HasPrefix(p.Path(), module+"/") && strings.Contains(p.Path(), "/internal/") {
			found = append(found, strings.TrimPrefix(p.Path(), module+"/")+"."+t.Obj().Name())
		}
		of(slices.Collect(t.TypeArgs().Types())...)
	case *types.Map:
		of(t.Key(), t.Elem())
	case interface{ Elem() types.Type }: // pointers, slices, arrays, channels
		of(t.Elem())
	case *types.Signature:
		for p := range t.TypeParams().TypeParams() {
			of(p.Constraint())
		}
		of(t.Params(), t.Results())
	case *types.Tuple:
		for v := range t.Variables() {
			of(v.Type())
		}
	case *types.Struct:
		for f := range t.Fields() {
			if f.Exported() {
				of(f.Type())
			}
		}
	case *types.Interface:
		for m := range t.Methods() {
			if m.Exported() {
				of(m.Type())
			}
		}
		of(slices.Collect(t.EmbeddedTypes())...)
	case *types.Union:
		for term := range t.Terms() {
			of(term.Type())
		}
	}
	return found
}
