package torture

import (
	"fmt"
	"strings"

	"github.com/trapeze-run/trapeze/internal/faultnet"
	"github.com/trapeze-run/trapeze/tools/torture/history"
)

// Pod is a place for pods behind a dedicated proxy. Its methods are safe for concurrent use.
type Pod struct {
	*place
	proxy *faultnet.Proxy
}

func newPod(w *World, name string, proxy *faultnet.Proxy) *Pod {
	p := &Pod{proxy: proxy}
	p.place = newPlace(w, "serve", history.Process{Pod: name, Slots: podSlots}, p.environment)
	return p
}

// Proxy returns the proxy between the pod and PostgreSQL.
func (p *Pod) Proxy() *faultnet.Proxy { return p.proxy }

// URL returns the current process's HTTP address, or an empty string if the process has not announced one.
func (p *Pod) URL() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil {
		return ""
	}
	return p.now.url
}

// address returns the network and the address of the pod's HTTP server.
func (p *Pod) address() (network, address string) {
	return "tcp", strings.TrimPrefix(p.URL(), "http://")
}

func (p *Pod) environment() []string {
	s := p.w.Settings
	return []string{
		"DATABASE_URL=" + p.proxy.URL(), "TRAPEZE_HTTP_ADDR=127.0.0.1:0", "TRAPEZE_TOKENS_FILE=" + p.w.tokens.file,
		"TRAPEZE_LEASE_DURATION=" + s.Lease.String(), "TRAPEZE_HEARTBEAT_INTERVAL=" + s.Heartbeat.String(), "TRAPEZE_POLL_INTERVAL=" + s.Poll.String(),
		fmt.Sprint("TRAPEZE_SLOTS=", podSlots), fmt.Sprint("TRAPEZE_MAX_CRASHES=", s.MaxCrashes), "TRAPEZE_MAX_ATTEMPTS=1",
		"TRAPEZE_KINDS=" + strings.Join(p.w.podKinds(), ","),
	}
}

// close kills the current process, if any, and closes the proxy.
func (p *Pod) close() {
	_ = p.Kill()
	p.proxy.Close()
}
