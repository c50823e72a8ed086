package app

import (
	"slices"
	"strings"
	"testing"

	"github.com/matryer/is"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func TestInvalidCommandArgumentMessages(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"job"}, "missing argument: trapeze job ID"},
		{[]string{"job", "1", "2"}, "too many arguments: trapeze job ID"},
		{[]string{"nice", "1"}, "missing argument: trapeze nice ID PRIORITY"},
		{[]string{"ps", "1"}, "too many arguments: trapeze ps"},
		{[]string{"pipeline"}, "missing argument: trapeze pipeline ID"},
		{[]string{"pipeline", "1", "2"}, "too many arguments: trapeze pipeline ID"},
		{[]string{"jbos"}, `unknown command "jbos" for trapeze (did you mean job or jobs?)`},
		{[]string{"cron", "sett"}, `unknown command "sett" for trapeze cron (did you mean next or set?)`},
		{[]string{"something"}, `unknown command "something" for trapeze`},
		{[]string{"jobs", "--limit", "x"}, `--limit "x": want a whole number`},
		{[]string{"drain", "--wait", "x"}, `--wait "x": want a duration such as 90s`},
	} {
		is := is.New(t)
		root := Command(Options{Name: "trapeze"})
		root.SetArgs(c.args)
		root.PersistentPreRun = func(*cobra.Command, []string) { t.Fatalf("%v was accepted", c.args) }
		err := root.ExecuteContext(t.Context())
		is.True(err != nil)
		is.Equal(err.Error(), c.want)
	}
}

func TestInvalidFlagValueMessages(t *testing.T) {
	t.Parallel()
	var check func(*cobra.Command, []string)
	check = func(c *cobra.Command, path []string) {
		c.Flags().VisitAll(func(flag *pflag.Flag) {
			if strings.HasPrefix(flag.Value.Type(), "string") {
				return
			}
			root := Command(Options{Name: "trapeze"})
			root.SetArgs(append(slices.Clone(path), "--"+flag.Name+"=x"))
			err := root.ExecuteContext(t.Context())
			if err == nil || !strings.HasPrefix(err.Error(), "--"+flag.Name+` "x": want `) {
				t.Errorf("trapeze %s --%s=x: %v", strings.Join(path, " "), flag.Name, err)
			}
		})
		for _, below := range c.Commands() {
			check(below, append(slices.Clone(path), below.Name()))
		}
	}
	check(Command(Options{Name: "trapeze"}), nil)
}
