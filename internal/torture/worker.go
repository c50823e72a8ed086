package torture

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trapeze-run/trapeze/internal/faultnet"
	"github.com/trapeze-run/trapeze/internal/torture/checker"
	"github.com/trapeze-run/trapeze/internal/torture/history"
)

const (
	workerSlots = 4
	workerWays  = 2 // pods that a worker knows the addresses of
)

// farKinds are run by remote workers alone, sharedKinds by pods and workers: so a chain of both goes from one to the other and back,
// at every step that is of the first. All other kinds are the pods' alone.
var (
	farKinds    = []string{"demo.echo", "demo.effect", "demo.progress"}
	sharedKinds = []string{"demo.sleep", "demo.result", "demo.fail", "demo.flaky", "demo.panic", "demo.goexit", "demo.exit", "demo.retry_later", "demo.chain", "demo.fanout"}
)

// podKinds are the kinds that pods run: all, where there is no worker.
func (w *World) podKinds() []string {
	return slices.DeleteFunc(checker.DemoKinds(), func(kind string) bool { return len(w.workers) > 0 && slices.Contains(farKinds, kind) })
}

// Worker is a place for remote workers: processes without a database, each of which knows two pods, through a proxy in front of each. Its
// methods are safe for concurrent use.
type Worker struct {
	*place
	ways []*faultnet.Proxy // to the pods of the place's record, in that order
}

// newWorker makes the n-th worker, from 0.
func newWorker(w *World, n int) (*Worker, error) {
	k := &Worker{}
	about := history.Process{Pod: workerName(n), Slots: workerSlots}
	for i := range min(workerWays, len(w.pods)) {
		pod := w.pods[(n+i)%len(w.pods)]
		way, err := faultnet.StartTo(pod.address)
		if err != nil {
			return nil, err
		}
		k.ways, about.Via = append(k.ways, way), append(about.Via, pod.name)
	}
	k.place = newPlace(w, "worker", about, k.environment)
	return k, nil
}

// workerName is the name of the n-th remote worker, from 0.
func workerName(n int) string { return fmt.Sprint("worker", n+1) }

func (k *Worker) environment() []string {
	var servers []string
	for _, way := range k.ways {
		servers = append(servers, "http://"+way.Addr())
	}
	return []string{
		"TRAPEZE_SERVER=" + strings.Join(servers, ","), "TRAPEZE_TOKEN=" + k.w.tokens.of[k.name], fmt.Sprint("TRAPEZE_SLOTS=", workerSlots),
		"TRAPEZE_KINDS=" + strings.Join(slices.Concat(farKinds, sharedKinds), ","),
	}
}

// pass has every way let bytes through.
func (k *Worker) pass() {
	for _, way := range k.ways {
		way.Pass()
	}
}

// links is how many connections the worker has.
func (k *Worker) links() (n int) {
	for _, way := range k.ways {
		n += way.Links()
	}
	return n
}

// servedBy is the pod that received a worker last, nil when none has.
func (w *World) servedBy(worker string) *Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.pods {
		if p.name == w.serving[worker] {
			return p
		}
	}
	return nil
}

// serves notes that a pod has received a worker.
func (w *World) serves(worker, pod string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.serving[worker] = pod
}

// close ends the process, if there is one, and the proxies.
func (k *Worker) close() {
	_ = k.Kill()
	for _, way := range k.ways {
		way.Close()
	}
}

// crowdName is who the clients, the operators and the nemesis are to the pods.
const crowdName = "torture"

// tokens are what everybody who talks to a pod shows it.
type tokens struct {
	file string            // that the pods read
	of   map[string]string // by name
}

// writeTokens writes the file that says who may do what: the crowd everything, each worker its kinds.
func (w *World) writeTokens(workers int) error {
	type line struct {
		Token string   `json:"token"`
		Name  string   `json:"name"`
		Roles []string `json:"roles"`
		Kinds []string `json:"kinds,omitempty"`
	}
	all := []line{{Token: rand.Text(), Name: crowdName, Roles: []string{"platform_admin"}}}
	for n := range workers {
		all = append(all, line{Token: rand.Text(), Name: workerName(n), Roles: []string{"worker"}, Kinds: slices.Concat(farKinds, sharedKinds)})
	}
	w.tokens.of = map[string]string{}
	for _, one := range all {
		w.tokens.of[one.Name] = one.Token
	}
	text, err := json.MarshalIndent(map[string]any{"tokens": all}, "", "  ")
	if err != nil {
		return err
	}
	if w.tokens.file, err = filepath.Abs(filepath.Join(w.Dir, "tokens.json")); err != nil {
		return err
	}
	return os.WriteFile(w.tokens.file, append(text, '\n'), 0o600)
}
