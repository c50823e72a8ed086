package store_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
	"github.com/trapeze-run/trapeze/job"
)

// large is 1 MiB of JSON.
var large = json.RawMessage(`"` + strings.Repeat("x", job.MaxArgsBytes-2) + `"`)

func TestPipelinePageOfLargePlans(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	w := newWorld(t)
	plan, err := json.Marshal([]job.Step{{Kind: "k", Args: large}, {Kind: "k", Args: large}, {Kind: "k", Args: large}})
	is.NoErr(err)
	chain := func(n *store.NewJob) { n.Planned, n.Pipeline = plan, ptr("heavy") }
	w.put(chain, chain, chain, chain)
	first, err := view.Pipelines(w.ctx(), w.Store, view.PipelineFilter{Limit: 1000})
	is.NoErr(err)
	is.Equal(len(first.Pipelines), 3) // each pipeline takes 3 MiB
	rest, err := view.Pipelines(w.ctx(), w.Store, view.PipelineFilter{Limit: 1000, Cursor: first.Cursor})
	is.NoErr(err)
	is.Equal(len(rest.Pipelines), 1)
	is.Equal(rest.Cursor, "")
}
