package app

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"
	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/runner"
)

func TestWorkerCommandHandlerRegistration(t *testing.T) {
	is := is.New(t)
	arguments := []string{"worker", "--server", "http://127.0.0.1:1"}
	is.Equal(Run(t.Context(), Command(Options{}), arguments), cli.CodeUsage) // no handlers are registered
	refuses := func(_ context.Context, r *runner.Runner, pool *pgxpool.Pool) error {
		is.True(r != nil && pool == nil) // a worker has no database
		return errors.New("no licence")
	}
	is.Equal(Run(t.Context(), Command(Options{Register: refuses}), arguments), cli.CodeRefused)
}

// This test guards against a limitation of cobra, which runs only the nearest PersistentPreRun.
func TestCustomCommandPreRunHook(t *testing.T) {
	is := is.New(t)
	root, hooked := Command(Options{}), 0
	root.AddCommand(&cobra.Command{
		Use: "greet", Args: cobra.NoArgs, PersistentPreRun: func(*cobra.Command, []string) { hooked++ },
		RunE: func(*cobra.Command, []string) error { return errors.New("nobody is there") },
	})
	is.Equal(Run(t.Context(), root, []string{"greet"}), cli.CodeRefused)
	is.Equal(hooked, 1)
	is.Equal(Run(t.Context(), root, []string{"greet", "whom"}), cli.CodeUsage)
	is.Equal(Run(t.Context(), root, []string{"cancel", "7", "--children"}), cli.CodeUsage) // this flag selects among many jobs
}

func TestVersionOfProgram(t *testing.T) {
	is := is.New(t)
	root := Command(Options{Name: "greeter", Release: "v1.2.3"})
	var out bytes.Buffer
	root.SetOut(&out)
	is.Equal(Run(t.Context(), root, []string{"version"}), cli.CodeOK)
	is.True(strings.HasPrefix(out.String(), "greeter v1.2.3 (schema version "))
}

// answering returns a server that gives each request the next answer, repeating the last one. It passes each request's body to sent.
func answering(t *testing.T, sent func(body string), answers ...string) string {
	t.Helper()
	var count atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		sent(string(body))
		_, _ = io.WriteString(w, answers[min(int(count.Add(1)), len(answers))-1])
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestFollowedPipelineAsJSON(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	running, ended := `{"id":"1","status":"running","jobs":[]}`, `{"id":"1","status":"succeeded","jobs":[]}`
	root := Command(Options{Name: "trapeze"})
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetArgs([]string{"pipeline", "1", "--follow", "--json", "--server", answering(t, func(string) {}, running, running, running, ended)})
	is.NoErr(root.ExecuteContext(t.Context()))
	is.Equal(strings.Count(out.String(), "\n"), 2)
}

func TestCompleteCommandEmptyError(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flags []string
		want  string
	}{
		{nil, `{"token":"K7"}`},
		{[]string{"--error", ""}, `{"token":"K7","error":""}`},
	} {
		is := is.New(t)
		var sent string
		root := Command(Options{Name: "trapeze"})
		root.SetOut(io.Discard)
		at := answering(t, func(body string) { sent = body }, `{"state":"waiting"}`)
		root.SetArgs(append([]string{"complete", "1", "--token", "K7", "--server", at}, c.flags...))
		is.NoErr(root.ExecuteContext(t.Context()))
		is.Equal(sent, c.want)
	}
}

func TestProgramNameInHelpTexts(t *testing.T) {
	is := is.New(t)
	root := Command(Options{Name: "greeter"})
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		texts := c.Short + "\n" + c.Long + "\n" + c.Example + "\n" + c.LocalFlags().FlagUsages()
		is.True(!strings.Contains(texts, "trapeze serve") && cli.Named(c, texts) == texts)
		for _, below := range c.Commands() {
			check(below)
		}
	}
	check(root)
	is.Equal(cli.Named(root, "schema trapeze is at version 3; run trapeze migrate up, then trapeze doctor"),
		"schema trapeze is at version 3; run greeter migrate up, then greeter doctor")
}
