package conformance

import (
	"log/slog"
	"sync"
	"time"

	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"

	"github.com/trapeze-run/trapeze/runner"
	"github.com/trapeze-run/trapeze/temporal"
	"github.com/trapeze-run/trapeze/temporal/devserver"
)

// server is the Temporal server of all cases. Each case has a prefix.
var server = sync.OnceValue(devserver.Start)

// openTemporal opens Temporal with short intervals.
func openTemporal(w *world, r *runner.Runner) {
	w.Helper()
	s := server()
	c, err := client.Dial(client.Options{HostPort: s.Address(), Namespace: s.Namespace(), Logger: sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler))})
	w.NoErr(err)
	w.Cleanup(c.Close)
	w.NoErr(temporal.Open(r, temporal.Options{Client: c, Namespace: s.Namespace(), Prefix: w.Name(), HeartbeatTimeout: 2 * time.Second,
		PollEvery: 200 * time.Millisecond, ReconcileEvery: time.Second}))
}
