//go:build environments

package environments

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
	"github.com/trapeze-run/trapeze/runner"
)

// setWallClock sets how far this process's wall clock is ahead. It is nil unless runWithWallClock built the process. The monotonic clock
// stays as it is.
var setWallClock func(ahead time.Duration)

const (
	readsClock = "\tsec, nsec, mono := runtimeNow()\n\tif mono == 0 {\n" // in time.Now
	wallOffset = "package time\n\nimport \"sync/atomic\"\n\n// WallOffset is the number of seconds by which the wall clock is ahead.\nvar WallOffset atomic.Int64\n"
)

// runWithWallClock runs the current test in a process whose wall clock can be set: it replaces time.Now of the standard library.
func runWithWallClock(t *testing.T) {
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatalf("go env GOROOT: %v", err)
	}
	lib, dir := filepath.Join(strings.TrimSpace(string(root)), "src", "time"), t.TempDir()
	source, err := os.ReadFile(filepath.Join(lib, "time.go"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(source), readsClock) != 1 {
		t.Fatalf("time.Now of this Go version does not contain %q: adapt readsClock", readsClock)
	}
	replace := map[string]string{}
	for name, text := range map[string]string{"time.go": strings.Replace(string(source), readsClock, strings.Replace(readsClock, "\n", "\n\tsec += WallOffset.Load()\n", 1), 1), "wall.go": wallOffset} {
		replace[filepath.Join(lib, name)] = filepath.Join(dir, name)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	run := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-vet=off", "-tags", "environments wall", "-overlay", filepath.Join(dir, "overlay.json"),
		"-timeout", "10m", "-run", "^"+strings.ReplaceAll(regexp.QuoteMeta(t.Name()), "/", "$/^")+"$", ".")
	if output, err := run.CombinedOutput(); err != nil || strings.Contains(string(output), "no tests to run") {
		t.Fatalf("%v\n%s", err, output)
	}
}

// setWallClocks sets how far the wall clocks of this process and of its first pod are ahead, and the second pod's are behind.
func (w *world) setWallClocks(ahead time.Duration) {
	if !w.wall {
		return
	}
	setWallClock(ahead)
	for i, p := range w.pods {
		if p.alive() {
			fmt.Fprintln(p.stdin, ahead*time.Duration(1-2*i))
		}
	}
}

// runWhileWallClocksJump sets the wall clocks and checks after each jump that jobs start at once, delayed jobs start when they are due, and
// pages are shown.
func (w *world) runWhileWallClocksJump() {
	for _, ahead := range []time.Duration{240 * time.Hour, -240 * time.Hour, 0, -240 * time.Hour} {
		w.setWallClocks(ahead)
		at := pgtest.QueryOne[time.Time](w.t, w.admin, "select now()")
		for delay, id := range map[time.Duration]int64{0: w.submit(turn{}, job.Succeeded), time.Second: w.submit(turn{}, job.Succeeded, runner.Delay(time.Second))} {
			w.wait("a job ends after a jump", func() bool {
				return w.yes("select exists (select from trapeze.done where id = $1)", id)
			})
			j, err := w.r.GetJob(w.t.Context(), id)
			if late := j.StartedAt.Sub(at) - delay; err != nil || late < 0 || late > 5*time.Second {
				w.t.Errorf("wall clocks %s ahead: a job with a delay of %s started %s late (%v)", ahead, delay, late, err)
			}
		}
		w.read()
	}
}

// checkWallClocks checks all that the jumps must not have changed, after all pods have stopped.
func (w *world) checkWallClocks() {
	for what, sql := range map[string]string{
		"lapsed pods, less the one that was killed": "select count(*) - 1 from trapeze.pods where closed = 'lapsed'",
		"jobs recovered, less the killed pod's":     "select count(*) - 1 from trapeze.job_events where event = 'job.recovered'",
		"occurrences that were lost, late or early": `select count(*) from (select *, lead(fire_at) over (order by fire_at) - fire_at as gap from trapeze.schedule_occurrences where schedule = 'tick') f
			where outcome <> 'fired' or missed > 0 or gap <> interval '1 second' or decided_at not between fire_at and fire_at + interval '10 seconds'`,
		"rows outside the partitions of their days": "select (select count(*) from trapeze.done_succeeded_default) + (select count(*) from trapeze.job_events_default)",
	} {
		if n := pgtest.QueryOne[int](w.t, w.admin, sql); n != 0 {
			w.t.Errorf("%s: %d", what, n)
		}
	}
	ended := pgtest.QueryOne[int64](w.t, w.admin, "select count(*) from trapeze.done where finished_at > (select closed_at from trapeze.pods where closed = 'lapsed')")
	h := api.Handler(w.r, api.Options{InsecureAllowAll: true})
	get := func(path string) string {
		response := httptest.NewRecorder()
		h.ServeHTTP(response, httptest.NewRequestWithContext(w.t.Context(), http.MethodGet, path, nil))
		if response.Code != http.StatusOK {
			w.t.Errorf("GET %s: %d %s", path, response.Code, response.Body)
		}
		return response.Body.String()
	}
	w.submit(runner.Raw{Name: "unknown", JSON: []byte("{}")}, job.Pending, runner.AllowUnregistered())
	for _, ahead := range []time.Duration{240 * time.Hour, -240 * time.Hour, 0} {
		setWallClock(ahead)
		var counted job.Stats
		if err := json.Unmarshal([]byte(get("/stats")), &counted); err != nil || counted.Total.Finished < ended {
			w.t.Errorf("wall clock %s ahead: the last hour has %d ended jobs, want %d or more (%v)", ahead, counted.Total.Finished, ended, err)
		}
		for path, want := range map[string]string{"/failures": "no such customer", "/jobs?since=10m&kind=fails": `"fails"`, "/ui/failures": "no such customer"} {
			if !strings.Contains(get(path), want) {
				w.t.Errorf("wall clock %s ahead: GET %s does not contain %s", ahead, path, want)
			}
		}
		if differ := strings.Contains(get("/doctor"), "of the clock of"); differ != (ahead != 0) {
			w.t.Errorf("wall clock %s ahead: the check clock of doctor says so: %t", ahead, differ)
		}
		for _, path := range []string{"/ui/", "/ui/jobs", "/ui/schedules", "/ui/pods", "/doctor"} {
			if found := regexp.MustCompile(`\b(9|10) ?d(ays?)?\b[^<]*`).FindString(get(path)); found != "" {
				w.t.Errorf("wall clock %s ahead: %s shows %q", ahead, path, found)
			}
		}
	}
}
