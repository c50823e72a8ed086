package e2e

import (
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

func TestLimitCommands(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	pool := pgtest.Connect(t, db.url)
	for range 3 {
		_, err := pool.Exec(t.Context(), `select trapeze.enqueue('demo.noop', '{}', key => 'tenant-42')`)
		is.NoErr(err)
	}
	_, err := pool.Exec(t.Context(), `update trapeze.parked set why = 'key'`) // as a pod does when they are due
	is.NoErr(err)
	is.Equal(db.ok("limit", "set", "--lane", "default", "--slots", "1"), "limit of each key in lane default: slots 1; before: none\n")
	set := db.ok("limit", "set", "--lane", "default", "--key", "tenant-42", "--slots", "2", "--weight", "3")
	is.Equal(set, "limit of key tenant-42 in lane default: slots 2, weight 3; before: none\n")
	usage := strings.Fields(strings.Split(db.ok("limit", "usage", "--lane", "default"), "\n")[1])
	is.Equal(usage[:4], []string{"tenant-42", "default", "demo.noop", "1"})
	is.Equal(usage[5:], []string{"2/2", "-", "lane"})
	lowered := db.ok("limit", "set", "--lane", "default", "--key", "tenant-42", "--slots", "1")
	is.Equal(lowered, "limit of key tenant-42 in lane default: slots 1, weight 3; before: slots 2, weight 3; 1 pending job waits for fewer to run\n")
	is.Equal(db.ok("limit", "set", "--kind", "demo.noop", "--slots", "4"), "limit of each key in kind demo.noop: slots 4; before: none\n")
	list := strings.Split(strings.TrimSpace(db.ok("limit", "ls", "--json")), "\n")
	is.Equal(len(list), 3)
	is.Equal(decoded[job.KeyLimit](t, list[2]), job.KeyLimit{LimitOf: job.LimitOf{Scope: "lane", Name: "default", Key: "tenant-42"}, Slots: new(1), Weight: new(3)})
	is.Equal(db.ok("limit", "set", "--lane", "default", "--key", "tenant-42", "--weight", "none"), "limit of key tenant-42 in lane default: slots 1; before: slots 1, weight 3\n")
	is.Equal(db.ok("limit", "rm", "--lane", "default", "--key", "tenant-42"), "limit of key tenant-42 in lane default: none; before: slots 1\n")
	is.Equal(db.ok("limit", "rm", "--lane", "default", "--key", "tenant-42"), "limit of key tenant-42 in lane default: none; before: none\n")
	is.Equal(db.ok("limit", "set", "--lane", "default", "--rate", "10", "--burst", "5"), "limit of all jobs in lane default: 10 per 1s, burst 5; before: none\n")
	is.Equal(db.ok("limit", "set", "--lane", "default", "--per", "1m"), "limit of all jobs in lane default: 10 per 1m0s, burst 5; before: 10 per 1s, burst 5\n")
	is.Equal(db.ok("limit", "rm", "--lane", "default", "--rate"), "limit of all jobs in lane default: none; before: 10 per 1m0s, burst 5\n")
	for _, wrong := range []struct{ args, says string }{
		{"set --slots 1", "want either --lane or --kind"},
		{"set --lane default", "the limit sets nothing: want slots, weight or rate"},
		{"set --lane default --slots 0", "slots 0: want 1 to 1000000, or none"},
		{"set --lane default --slots -1", "slots -1: want 1 to 1000000, or none"},
		{"set --lane default --weight 0", "weight 0: want 1 to 100, or none"},
		{"set --lane default --weight 101", "weight 101: want 1 to 100, or none"},
		{"set --lane default --slots 1 --key " + strings.Repeat("k", 201), "the key has 201 bytes: want 1 to 200 bytes of text"},
		{"set --lane default --rate -1", "rate of -1: want 1 to 1000000, or none"},
		{"set --lane default --rate 1 --per 0s", "interval of 0s for a rate: want whole seconds, from 1s to a year"},
		{"set --lane default --rate 1 --burst 0", "burst of 0: want 1 to 1000000"},
		{"set --kind k --rate 1", "for the rate of a kind, give it a lane of its own"},
		{"set --lane default --slots x", `--slots "x": want a whole number, or none`},
		{"set --kind k --weight 2", "weight of a kind: set the weight in a lane"},
		{"set --lane default --key= --slots 1", "slots and weight are of a key: name a key, or * for each key"},
		{"rm --lane default --kind k", "want either --lane or --kind"},
	} {
		refused := db.run(append([]string{"limit"}, strings.Fields(wrong.args)...)...)
		is.Equal(refused.code, 2)
		is.True(strings.Contains(refused.err, wrong.says))
	}
	for args, code := range map[string]int{"set --lane nowhere --slots 1": 1, "set --lane nowhere --rate 1": 1, "set --lane default --burst 2": 2} {
		is.Equal(db.run(append([]string{"limit"}, strings.Fields(args)...)...).code, code)
	}
	is.Equal(len(strings.Split(strings.TrimSpace(db.ok("limit", "ls", "--json")), "\n")), 2) // nothing was stored
	is.Equal(db.ok("limit", "set", "--lane", "default", "--key", "later", "--weight", "2"), "limit of key later in lane default: weight 2; before: none\n")
	is.Equal(db.ok("limit", "set", "--kind", "later", "--slots", "2"), "limit of each key in kind later: slots 2; before: none\n")
}

func TestInvalidEnqueueFlags(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	for args, says := range map[string]string{
		"--replace": "--replace, --debounce and --throttle need --unique KEY",
		"--key u --debounce 1s --debounce-max 1m":    "--replace, --debounce and --throttle need --unique KEY",
		"--unique u --debounce 0s":                   "Debounce with a wait of 0",
		"--unique u --debounce 2s --debounce-max 1s": "debounce max of 1s, want at least its wait of 2s",
		"--unique u --throttle 0s":                   "Throttle with an interval of 0",
		"--unique u --throttle -1s":                  "throttle of -1s, want more than 0",
		"--ordered":                                  "ordered without a subject",
		"--start-by 0s":                              "StartBy(0s), want more than 0",
		"--start-by -1s":                             "StartBy(-1s), want more than 0",
		"--key *":                                    `key "*", which stands for all keys in limits`,
		"--key " + strings.Repeat("k", 201):          "key of 201 bytes, at most 200",
		"--lane nowhere":                             "unknown lane",
		"--lane tenant/*":                            "unknown lane",
	} {
		refused := db.run(append([]string{"enqueue", "demo.noop"}, strings.Fields(args)...)...)
		if code := map[bool]int{true: 1, false: 2}[says == "unknown lane"]; refused.code != code || !strings.Contains(refused.err, says) {
			t.Errorf("%s: exit code %d, %s", args, refused.code, refused.err)
		}
	}
	is.Equal(db.ok("jobs", "--json"), "") // nothing was submitted
	ok := strings.TrimSpace(db.ok("enqueue", "demo.noop", "--unique", "u", "--debounce", "1m", "--debounce-max", "1h"))
	is.Equal(strings.TrimSpace(db.ok("enqueue", "demo.noop", "--unique", "u", "--debounce", "1m", "--debounce-max", "1h")), ok)
}
