package telemetry

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// logging maps the methods of a logger to the number of arguments before the attributes.
var logging = map[string]int{
	"DebugContext": 2, "InfoContext": 2, "WarnContext": 2, "ErrorContext": 2, "Debug": 1, "Info": 1, "Warn": 1, "Error": 1, "With": 0, "warn": 2,
}

// loggers lists the names that loggers have in this module.
var loggers = []string{"log", "damped", "slog", "logger", "Logger"}

// keys returns the constants of keys.go by name.
func keys(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "keys.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			found[spec.Names[0].Name], _ = strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		}
		return true
	})
	return found
}

func TestLogKeys(t *testing.T) {
	is := is.New(t)
	known, lines := keys(t), 0
	for _, dir := range []string{"runner", "api", "cmd/app", "cmd/trapeze", "handlers", "poller", "scheduler", "internal", "remote"} {
		for name, file := range sources(t, filepath.Join("../..", dir)) {
			for _, line := range logLines(file) {
				lines++
				for _, complaint := range judge(line, known) {
					t.Errorf("%s: %s", name, complaint)
				}
			}
		}
	}
	is.True(lines > 40) // log lines were found
}

func TestUnlistedLogKey(t *testing.T) {
	for line, wrong := range map[string]bool{
		`r.log.WarnContext(ctx, "message", "job_id", 1)`:                              false,
		`r.log.WarnContext(ctx, "message", telemetry.JobID, 1, telemetry.Err, err)`:   false,
		`r.log.WarnContext(ctx, "message", append(one.attrs(), "why", "because")...)`: false,
		`r.log.WarnContext(ctx, "message", telemetry.JobID, 1, "secret", err)`:        true,
		`r.log.WarnContext(ctx, "message", append(one.attrs(), "wy", "because")...)`:  true,
		`slog.Error("message", "argh", 1)`:                                            true,
		`slog.Error("message", key, 1)`:                                               true,
		`slog.Error(fmt.Sprintf("job %d", id))`:                                       true,
		`slog.Error("message", slog.String("argh", s))`:                               true,
		`slog.Error("message", slog.String("why", s))`:                                false,
	} {
		t.Run(line, func(t *testing.T) {
			is := is.New(t)
			file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\nfunc x() { "+line+" }", 0)
			is.NoErr(err)
			found := logLines(file)
			is.Equal(len(found), 1)                            // the call is recognized as a log line
			is.Equal(len(judge(found[0], keys(t))) > 0, wrong) // the log line is checked
		})
	}
}

// logLines returns the calls to logging methods in a file.
func logLines(file *ast.File) (lines []*ast.CallExpr) {
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if _, ok := logging[method.Sel.Name]; ok && slices.Contains(loggers, last(method.X)) {
			lines = append(lines, call)
		}
		return true
	})
	return lines
}

// judge returns the mistakes in a log line, such as a message built at run time, or a key that is missing from keys.go.
func judge(call *ast.CallExpr, known map[string]string) (wrong []string) {
	method := call.Fun.(*ast.SelectorExpr).Sel.Name
	before := logging[method]
	if len(call.Args) < before {
		return nil
	}
	if before > 0 {
		if _, made := call.Args[before-1].(*ast.CallExpr); made {
			wrong = append(wrong, "the message of "+method+" is not fixed: what changes is an attribute")
		}
	}
	attrs := call.Args[before:]
	if len(attrs) == 1 && call.Ellipsis.IsValid() {
		list, ok := attrs[0].(*ast.CallExpr)
		if !ok || last(list.Fun) != "append" {
			return wrong // a function returns complete pairs, which are checked where they are built
		}
		attrs = list.Args[1:]
	}
	for i := 0; i < len(attrs); i += 2 {
		key := attrs[i]
		if made, ok := key.(*ast.CallExpr); ok && len(made.Args) > 0 {
			key = made.Args[0] // slog.String(key, …) is a complete attribute
			i--
		}
		switch k := key.(type) {
		case *ast.BasicLit:
			text, _ := strconv.Unquote(k.Value)
			if !has(known, text) {
				wrong = append(wrong, "the key "+k.Value+" is not in internal/telemetry/keys.go")
			}
		case *ast.SelectorExpr:
			if last(k.X) != "telemetry" || known[k.Sel.Name] == "" {
				wrong = append(wrong, "the key "+k.Sel.Name+" is not of internal/telemetry/keys.go")
			}
		case *ast.Ident: // a constant, in package telemetry itself
			if known[k.Name] == "" {
				wrong = append(wrong, "the key "+k.Name+" is not of internal/telemetry/keys.go")
			}
		default:
			wrong = append(wrong, "a key of "+method+" is neither a constant of internal/telemetry nor a literal")
		}
	}
	return wrong
}

func has(known map[string]string, text string) bool {
	for _, k := range known {
		if k == text {
			return true
		}
	}
	return false
}

// last returns the last identifier in an expression such as r.log or slog.
func last(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return x.Sel.Name
	}
	return ""
}

// sources parses all Go files under a directory except tests.
func sources(t *testing.T, dir string) map[string]*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		files[name] = file
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
