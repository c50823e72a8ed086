package app

import (
	"testing"

	"github.com/matryer/is"
	"github.com/spf13/cobra"
)

func TestArgumentsAreRefusedInTheWordsOfThisProgram(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"job"}, "missing argument: trapeze job ID"},
		{[]string{"job", "1", "2"}, "too many arguments: trapeze job ID"},
		{[]string{"nice", "1"}, "missing argument: trapeze nice ID PRIORITY"},
		{[]string{"ps", "1"}, "too many arguments: trapeze ps"},
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
