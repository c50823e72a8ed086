package store

import (
	"encoding/json"
	"strings"
	"testing"
)

// touched is what a statement touches: pages of the shared buffers, and rows that left a scan.
type touched struct{ Buffers, Rows int }

func literals(values ...string) []string {
	for i, v := range values {
		values[i] = "'" + strings.ReplaceAll(v, "'", "''") + "'"
	}
	return values
}

type node struct {
	Type    string  `json:"Node Type"`
	Parent  string  `json:"Parent Relationship"`
	Hit     int     `json:"Shared Hit Blocks"`
	Read    int     `json:"Shared Read Blocks"`
	Rows    float64 `json:"Actual Rows"`
	Loops   float64 `json:"Actual Loops"`
	Removed float64 `json:"Rows Removed by Filter"`
	Plans   []node  `json:"Plans"`
}

// read adds up a plan. A node's buffers hold those of the nodes below it, except of a part of the statement that writes and
// is run last; so each part counts, some twice.
func read(t *testing.T, plan string) (sum touched) {
	t.Helper()
	var tops []struct{ Plan node }
	if err := json.Unmarshal([]byte(plan), &tops); err != nil {
		t.Fatalf("%v in %s", err, plan)
	}
	var walk func(n node)
	walk = func(n node) {
		if n.Parent == "" || n.Parent == "InitPlan" {
			sum.Buffers += n.Hit + n.Read
		}
		if strings.Contains(n.Type, "Scan") {
			sum.Rows += int((n.Rows + n.Removed) * n.Loops)
		}
		for _, below := range n.Plans {
			walk(below)
		}
	}
	walk(tops[0].Plan)
	return sum
}
