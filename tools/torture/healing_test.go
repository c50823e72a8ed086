//go:build long

package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// A run may end while a fault is being injected. By the time the injector returns, everything that it broke must be repaired.
func TestInterruptedFaultInjectionIsRepaired(t *testing.T) {
	is := is.New(t)
	w, err := NewWorld(t.Context(), Options{Seed: 2, Pods: 2, Dir: filepath.Join(t.TempDir(), "2")})
	is.NoErr(err)
	defer func() { is.NoErr(w.Close()) }()
	is.NoErr(w.startPods(t.Context()))
	w.Settings.Began = time.Now()
	crowd := NewCrowd(w)
	for i, v := range injectors {
		t.Run(v.name, func(t *testing.T) {
			is := is.New(t)
			act := history.Act{No: i + 1, Fault: v.fault, Verb: v.name, For: time.Minute, Number: v.many, Note: map[string]any{}}
			switch v.aim {
			case atPod:
				act.Pod = podName(i % 2)
			case atWorker:
				act.Pod = workerName(i % 2)
			}
			if v.note != nil {
				v.note(rand.New(rand.NewPCG(1, uint64(i))), &act, 2)
			}
			short, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
			defer cancel()
			began := time.Now()
			is.NoErr(Inject(short, crowd, []history.Act{act}))
			is.True(time.Since(began) < 2*undoWithin) // the injector returns in time
			well(t, w, crowd)
		})
	}
	faults, err := history.ReadLines[history.Fault](filepath.Join(w.Dir, history.FaultsFile))
	is.NoErr(err)
	is.Equal(len(faults), len(injectors)) // each fault left a record
	for _, f := range faults {
		if f.Error != "" {
			t.Errorf("%s: %s", f.Verb, f.Error)
		}
	}
	var left []string
	is.NoErr(w.Admin.QueryRow(t.Context(), `select array(select r.rolname || ' ' || s.setconfig::text from pg_db_role_setting s join pg_roles r on r.oid = s.setrole
		where s.setconfig::text not like '{role=%}' union all select 'tablespace ' || spcname from pg_tablespace where spcname = 'small')`).Scan(&left))
	is.Equal(left, []string{}) // no setting remains changed, and no tablespace is left behind
}

// well waits until each pod has successfully run a new job.
func well(t *testing.T, w *World, crowd *Crowd) {
	t.Helper()
	for _, p := range w.Pods() {
		var id int64
		until(t, p.Name()+" takes a job", func() bool {
			what := simple("demo.noop", `{}`)
			what.key = fmt.Sprint("well ", p.Name(), time.Now().UnixNano())
			id = crowd.submit(t.Context(), 0, p, what).Job
			return id != 0
		})
		until(t, "the job succeeds", func() bool {
			var state string
			return w.Admin.QueryRow(t.Context(), `select state from trapeze.job where id = $1`, id).Scan(&state) == nil && state == "succeeded"
		})
	}
}
