package app

import (
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/cli"
	"github.com/trapeze-run/trapeze/internal/schema"
)

// pingWithin limits how long a pod may take to respond.
const pingWithin = 3 * time.Second

func newPingCommand() *cobra.Command {
	var ready bool
	c := &cobra.Command{
		Use:   "ping",
		Short: "Check that a pod responds: a health check for containers without a shell",
		Long: `Ask the pod at --server whether it is alive (GET /healthz) or, with --ready, whether it accepts work (GET /readyz). Without
--server and TRAPEZE_SERVER, ask the pod on this machine, at TRAPEZE_HTTP_ADDR. The exit code is 0 for yes, and 3 for no.

If TRAPEZE_TLS_CLIENT_CA is set, the pod's own certificate is presented, so the authority must have signed it for clients, too.`,
		Example: "  trapeze ping\n  trapeze ping --ready --server https://jobs.example.org",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			config, err := cli.Load()
			if err != nil {
				return err
			}
			transport := http.DefaultTransport.(*http.Transport).Clone()
			defer transport.CloseIdleConnections()
			url := strings.TrimRight(cli.ServerFlag(c, config), "/")
			if url == "" {
				if url, transport.TLSClientConfig, err = ownPod(config); err != nil {
					return err
				}
			} else if err := cli.ValidServer(url); err != nil {
				return cli.Usage("--server: %w", err)
			}
			route := "/healthz"
			if ready {
				route = "/readyz"
			}
			return ping(c, &http.Client{Transport: transport, Timeout: pingWithin}, url+route)
		},
	}
	c.Flags().BoolVar(&ready, "ready", false, "check that the pod accepts work, not only that it is alive")
	return c
}

// ownPod returns the URL of the pod on this machine and the TLS settings for connecting to it, which are nil without TLS.
func ownPod(config cli.Settings) (url string, secure *tls.Config, err error) {
	host, port, err := net.SplitHostPort(config.API.Addr)
	if err != nil || port == "0" {
		return "", nil, cli.Usage("TRAPEZE_HTTP_ADDR=%s names no port: set --server", config.API.Addr)
	}
	switch host { // addresses that mean every interface
	case "0.0.0.0":
		host = "127.0.0.1"
	case "::":
		host = "::1"
	}
	served, err := config.API.TLS()
	if err != nil {
		return "", nil, cli.Usage("%w", err)
	}
	if served == nil {
		return "http://" + net.JoinHostPort(host, port), nil, nil
	}
	// The certificate names the host by which other machines reach the pod, so it is not verified here; a health check sends no secret and
	// does not rely on the response body. If the pod requires a client certificate, the pod's own is the only one available.
	return "https://" + net.JoinHostPort(host, port), &tls.Config{
		InsecureSkipVerify: true, // #nosec G402
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return served.GetCertificate(nil)
		},
	}, nil
}

// ping sends the request and prints the pod's status.
func ping(c *cobra.Command, to *http.Client, url string) error {
	request, err := http.NewRequestWithContext(c.Context(), http.MethodGet, url, nil)
	if err != nil {
		return cli.Usage("%w", err)
	}
	response, err := to.Do(request)
	if err != nil {
		return cli.Unavailable("%w", err)
	}
	defer response.Body.Close()
	var status struct {
		Reasons []string `json:"reasons"`
	}
	_ = json.NewDecoder(http.MaxBytesReader(nil, response.Body, 1<<20)).Decode(&status) // the exit code depends only on the HTTP status
	if response.StatusCode != http.StatusOK {
		return cli.Unavailable("%s returned %s: %s", url, response.Status, strings.Join(status.Reasons, ", "))
	}
	return cli.Done(c, map[string]any{"ok": true, "url": url}, "ok")
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program and of its schema",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			version := map[string]any{"version": cli.ProgramVersion(c), "schema_version": schema.Latest(), "go": runtime.Version()}
			return cli.Done(c, version, "%s %s (schema version %d, %s)", c.Root().Name(), cli.ProgramVersion(c), schema.Latest(), runtime.Version())
		},
	}
}

func newRoutesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "routes",
		Short: "List the routes of the HTTP API and the permission that each needs",
		Long: `List the routes of the HTTP API that this program serves, and the permission that each needs; - means none. GET /metrics and
the dashboard under /ui/ are not listed.`,
		Example: "  trapeze routes\n  trapeze routes --json | jq -r 'select(.permission == \"workers:manage\") | .path'",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			type route struct {
				Method     string `json:"method"`
				Path       string `json:"path"`
				Permission string `json:"permission"`
				Summary    string `json:"summary"`
			}
			var list []route
			for _, r := range api.Routes() {
				list = append(list, route{r.Method, r.Path, string(r.Needs), r.Summary})
			}
			return cli.List(c, "METHOD PATH PERMISSION DOES", cli.Rows(list), func(r route) []string {
				return []string{r.Method, r.Path, r.Permission, r.Summary}
			})
		},
	}
}
