package host_test

import (
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/inside"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/podtest"
	"github.com/trapeze-run/trapeze/runner"
)

// A pod that receives no notifications, for example behind a connection pooler, still notices when a job that it finishes makes the next
// step ready.
func TestRemoteNextStepWithoutNotifications(t *testing.T) {
	is := is.New(t)
	r := podtest.Start(t, pgtest.Pool(t), runner.Options{DirectURL: "off", PollInterval: time.Hour}, noKinds)
	w := newFar()
	w.connect(t, r, 1, "far")
	w.keepBeating(t, r)
	foreign(t, r, podtest.RawArgs("far"))
	_, err := w.reports(t, r, w.takes(t, r), runner.Then(podtest.RawArgs("local")), nil)
	is.NoErr(err)
	pgtest.Wait(t, "the step has run here", func() bool {
		list, err := inside.Of(r).Store.Pool().Query(t.Context(), `select from trapeze.done where (select j.kind from trapeze.jobs j where j.id = done.id) = 'local'`)
		is.NoErr(err)
		defer list.Close()
		return list.Next()
	})
}
