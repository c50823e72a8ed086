package wire

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/work"
)

func TestVerdictOfTenThousandChildren(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	fan := &work.FanOut{}
	for i := range 10_000 {
		fan.Children = append(fan.Children, &work.Submission{Kind: "csv_ingest", Args: fmt.Appendf(nil, `{"file":"part-%d"}`, i), Emitted: true})
	}
	raw, err := json.Marshal(Verdict{Outcome: &work.Outcome{Fan: fan}})
	is.NoErr(err)
	is.NoErr(TooLarge("an outcome", len(raw)))
	var back Verdict
	is.NoErr(json.Unmarshal(raw, &back))
	is.Equal(back.Outcome.Fan.Children[9_999], fan.Children[9_999])
}
