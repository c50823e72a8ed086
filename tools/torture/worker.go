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
	"github.com/trapeze-run/trapeze/tools/torture/checker"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

const (
	workerSlots   = 4
	podsPerWorker = 2 // number of pods whose addresses a worker knows
)

// remoteKinds run only on remote workers; sharedKinds run on pods and workers. All other kinds run only on pods. A chain that mixes
// remoteKinds with kinds that only pods run therefore moves back and forth between workers and pods.
var (
	remoteKinds = []string{"demo.echo", "demo.effect", "demo.progress"}
	sharedKinds = []string{"demo.sleep", "demo.result", "demo.fail", "demo.flaky", "demo.panic", "demo.goexit", "demo.exit", "demo.snooze", "demo.chain", "demo.fanout"}
)

// podKinds returns the kinds that pods run. Without workers, pods run all kinds.
func (w *World) podKinds() []string {
	return slices.DeleteFunc(checker.DemoKinds(), func(kind string) bool { return len(w.workers) > 0 && slices.Contains(remoteKinds, kind) })
}

// Worker is a place in the fleet for remote worker processes. The processes have no database connection and know two pods, each behind a
// separate proxy. Its methods are safe for concurrent use.
type Worker struct {
	*place
	proxies []*faultnet.Proxy // one per pod, in the order in which the place's record lists the pods
}

// newWorker creates the nth worker, counting from 0.
func newWorker(w *World, n int) (*Worker, error) {
	k := &Worker{}
	about := history.Process{Pod: workerName(n), Slots: workerSlots}
	for i := range min(podsPerWorker, len(w.pods)) {
		pod := w.pods[(n+i)%len(w.pods)]
		way, err := faultnet.StartTo(pod.address)
		if err != nil {
			return nil, err
		}
		k.proxies, about.Via = append(k.proxies, way), append(about.Via, pod.name)
	}
	k.place = newPlace(w, "worker", about, k.environment)
	return k, nil
}

// workerName returns the name of the nth remote worker, counting from 0.
func workerName(n int) string { return fmt.Sprint("worker", n+1) }

func (k *Worker) environment() []string {
	var servers []string
	for _, way := range k.proxies {
		servers = append(servers, "http://"+way.Addr())
	}
	return []string{
		"TRAPEZE_SERVER=" + strings.Join(servers, ","), "TRAPEZE_TOKEN=" + k.w.tokens.of[k.name], fmt.Sprint("TRAPEZE_SLOTS=", workerSlots),
		"TRAPEZE_KINDS=" + strings.Join(slices.Concat(remoteKinds, sharedKinds), ","),
	}
}

// pass removes all faults from the worker's network.
func (k *Worker) pass() {
	for _, way := range k.proxies {
		way.Pass()
	}
}

// links returns the number of the worker's connections.
func (k *Worker) links() (n int) {
	for _, way := range k.proxies {
		n += way.Links()
	}
	return n
}

// servedBy returns the pod that last accepted the worker, or nil if none has.
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

// serves records that the given pod has accepted the worker.
func (w *World) serves(worker, pod string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.serving[worker] = pod
}

// close kills the process, if any, and closes the proxies.
func (k *Worker) close() {
	_ = k.Kill()
	for _, way := range k.proxies {
		way.Close()
	}
}

// crowdName is the name by which pods know the clients, the operators and the nemesis.
const crowdName = "torture"

// tokens contains the credentials of every program that sends requests to a pod.
type tokens struct {
	file string            // path of the file that the pods read
	of   map[string]string // the tokens by their holders' names
}

// writeTokens writes the token file. The crowd has full access, and workers may run only the kinds meant for them.
func (w *World) writeTokens(workers int) error {
	type line struct {
		Token string   `json:"token"`
		Name  string   `json:"name"`
		Roles []string `json:"roles"`
		Kinds []string `json:"kinds,omitempty"`
	}
	all := []line{{Token: rand.Text(), Name: crowdName, Roles: []string{"platform_admin"}}}
	for n := range workers {
		all = append(all, line{Token: rand.Text(), Name: workerName(n), Roles: []string{"worker"}, Kinds: slices.Concat(remoteKinds, sharedKinds)})
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
