package e2e

import (
	"regexp"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

func TestApproveCommand(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	serve(t, db.url, nil)
	pool := pgtest.Connect(t, db.url)
	_, err := pool.Exec(t.Context(), `update trapeze.lanes set requires_approval = true`)
	is.NoErr(err)
	answer := decoded[map[string]any](t, db.ok("enqueue", "demo.noop", "--json"))
	is.Equal(answer["state"], "awaiting_approval")
	id := answer["id"].(string)
	is.True(strings.Contains(db.ok("jobs", "--state", "awaiting_approval"), id))
	is.Equal(strings.TrimSpace(db.ok("approve", id)), "job "+id+" approved")
	db.inState(id, job.Succeeded)
	again := db.run("approve", id)
	is.Equal(again.code, 1)
	is.True(strings.Contains(again.err, "does not await approval"))
	is.Equal(db.run("approve", "999999").code, 1) // no such job
	is.Equal(decoded[map[string]any](t, db.ok("approve", strings.TrimSpace(db.ok("enqueue", "demo.noop")), "--json"))["state"], "pending")
}

func TestApproveCommandOfSubmitter(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	strict := []string{"DATABASE_URL=" + db.url, "TRAPEZE_FOUR_EYES=true"}
	id := db.enqueue("some.kind", "--needs-approval")
	refused := trapeze(t, strict, "approve", id)
	is.Equal(refused.code, 1)
	is.True(strings.Contains(refused.err, "another person must approve the job"))
	_, err := pgtest.Connect(t, db.url).Exec(t.Context(), `update trapeze.jobs set submitter = 'ana' where id = $1::text::bigint`, id)
	is.NoErr(err)
	is.Equal(trapeze(t, strict, "approve", id).code, 0)
}

func TestApproveCommandAfterArgumentsChange(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	id := db.enqueue("some.kind", "--needs-approval")
	is.True(regexp.MustCompile(`(?m)^epoch +1$`).MatchString(db.ok("job", id)))
	db.ok("cancel", id, "--epoch", "1")
	db.ok("retry", id, "--args", `{"n":2}`)
	for _, command := range []string{"approve", "cancel"} {
		refused := db.run(command, id, "--epoch", "1")
		is.Equal(refused.code, 1)
		is.True(strings.Contains(refused.err, "changed since you read it"))
	}
	is.Equal(db.run("cancel", "--epoch", "1", "--kind", "some.kind").code, 2) // an epoch refers to a single job
	db.ok("approve", id, "--epoch", "2")
	is.Equal(db.job(id).State, job.Pending)
}
