package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestEnqueueCommandWithUnhandledKind(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	serve(t, db.url, nil)
	for _, flags := range [][]string{{}, {"--json"}, {"--delay", "1h"}} {
		typo := db.run(append([]string{"enqueue", "demo.slep"}, flags...)...)
		is.Equal(typo.code, 0)
		is.True(strings.HasPrefix(typo.err, `warning: no live pod has a handler of "demo.slep": job `))
		is.Equal(strings.Count(typo.err, "\n"), 1)
	}
	is.Equal(db.run("enqueue", "demo.sleep", "--args", `{"ms":1}`).err, "")
	is.Equal(db.run("enqueue", "demo.sleep", "--args", `{"ms":1}`, "--delay", "1h").err, "")

	c := exec.Command(os.Args[0], "enqueue", "demo.slep", "--wait")
	c.Env = environment("DATABASE_URL=" + db.url)
	out, err := c.StderrPipe()
	is.NoErr(err)
	is.NoErr(c.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	is.NoErr(err)
	var id int64
	_, err = fmt.Sscanf(line, "job %d demo.slep pending: ", &id)
	is.NoErr(err)
	is.True(strings.HasSuffix(line, "no live pod has a handler of \"demo.slep\"\n")) // with --wait, the command prints why the job is waiting
	db.ok("cancel", fmt.Sprint(id))
	is.True(c.Wait() != nil) // the job was cancelled
}

// Each command reserves only one ID, so the next command's job gets the next ID.
func TestEnqueueCommandReservedIDs(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	var first, next int64
	for i := range 5 {
		_, err := fmt.Sscan(db.enqueue("some.kind"), &next)
		is.NoErr(err)
		if i == 0 {
			first = next
		}
		is.Equal(next, first+int64(i))
	}
}
