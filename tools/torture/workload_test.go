package torture

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

func TestASeedHasOneWorkload(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	text := func(seed uint64, client int) string {
		k := newErrands(seed, client)
		var all []errand
		for range 500 {
			all = append(all, k.next())
		}
		raw, err := json.Marshal(all)
		is.NoErr(err)
		return string(raw)
	}
	is.Equal(text(1, 1), text(1, 1))  // the same seed produces the same errands
	is.True(text(1, 1) != text(2, 1)) // a different seed produces different errands
	is.True(text(1, 1) != text(1, 2)) // so does another client
}

func TestWorkloadMixAndPace(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	kinds, ends := map[string]int{}, map[string]int{}
	var took time.Duration
	jobs, keys, again, subjects, unique, delayed, narrow, limited, made := 0, 0, 0, 0, 0, 0, 0, 0, 0
	for client := 1; client <= clients; client++ {
		k := newErrands(7, client)
		for range 2000 {
			e := k.next()
			took += e.After / clients
			ends[e.End]++
			if e.Submit == nil {
				continue
			}
			s := *e.Submit
			is.True(len(s.Chain) == 0 || len(s.Chain) >= 2 && len(s.Chain) <= 7) // chains have 3 to 8 steps
			kinds[s.Kind]++
			jobs += 1 + len(s.Chain)
			if s.Kind == "demo.chain" {
				var carried struct{ Steps []json.RawMessage }
				is.NoErr(json.Unmarshal(s.Args, &carried))
				jobs += len(carried.Steps)
			}
			count := func(n *int, is bool) {
				if is {
					*n++
				}
			}
			count(&keys, s.key != "")
			count(&again, len(e.Again) > 0)
			count(&subjects, s.Subject != "")
			count(&unique, s.UniqueKey != "")
			count(&delayed, s.Delay != "")
			count(&narrow, s.Lane == narrowLane)
			count(&limited, s.Lane == limitedLane)
			count(&made, strings.HasPrefix(s.Lane, "tenant/"))
			is.True(json.Valid(s.Args) || len(s.Args) == 0)
		}
	}
	rate := float64(jobs) / took.Seconds()
	is.True(rate > 30 && rate < 60) // jobs per second
	for _, kind := range []string{"sleep", "noop", "echo", "result", "fail", "flaky", "panic", "goexit", "chain", "snooze", "progress", "tx", "effect"} {
		is.True(kinds["demo."+kind] > 20) // each kind is used
	}
	for _, n := range []int{keys, again, subjects, unique, delayed, narrow, limited, made, ends["cancel"], ends["stop"]} {
		is.True(n > 100) // every option is used
	}
}

func TestClientOutcomeByResponse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status  int
		code    string
		outcome string
	}{
		{202, "", history.OK}, {200, "", history.OK}, {400, "invalid_args", history.Refused}, {409, "already_terminal", history.Refused},
		{503, "unavailable", history.Refused}, {503, "outcome_unknown", history.Unknown}, {500, "internal", history.Unknown},
	} {
		is := is.New(t)
		is.Equal(outcomeOf(c.status, c.code), c.outcome)
	}
}
