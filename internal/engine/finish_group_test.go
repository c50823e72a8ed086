package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/work"
)

func TestRejectedStatementsKindCommittedAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		g := &groups{alone: map[string]time.Time{}}
		queued := work.Writes{{SQL: "select 1"}}
		g.refused("a")
		time.Sleep(59 * time.Second)
		is.True(!g.takes("a", queued))
		is.True(g.takes("b", queued))
		time.Sleep(2 * time.Second)
		is.True(g.takes("a", queued))
	})
}
