// Package faults starts a Temporal server with SQLite on loopback for tests and demonstrations. The server keeps its data in memory or in a
// file. After it is killed, it can continue from its file.
//
// The server's package temporaltest cannot store data in a file, which the tests that kill the server require.
package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/server/common/authorization"
	"go.temporal.io/server/common/cluster"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/dynamicconfig"
	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/persistence/sql/sqlplugin/sqlite"
	schema "go.temporal.io/server/schema/sqlite"
	"go.temporal.io/server/temporal"
)

// Options configure a [Server].
type Options struct {
	// Namespaces are created with a retention of one day. The default is one namespace named default.
	Namespaces []string
	// File holds the data. It is created if it does not exist. By default, the data is kept in memory.
	File string
	// Port is the server's port on 127.0.0.1. By default, a free port is used.
	Port int
}

// Server is a running Temporal server.
type Server struct {
	server  temporal.Server
	address string
}

const (
	loopback = "127.0.0.1"
	one      = "active" // the name of the only cluster
	// startWithin limits how long the server may take to respond.
	startWithin = time.Minute
)

// Start starts a server and returns once it responds.
func Start(ctx context.Context, o Options) (*Server, error) {
	if len(o.Namespaces) == 0 {
		o.Namespaces = []string{"default"}
	}
	if o.Port == 0 {
		ports, err := freePorts(1)
		if err != nil {
			return nil, err
		}
		o.Port = ports[0]
	}
	c, err := configure(o)
	if err != nil {
		return nil, err
	}
	server, err := temporal.NewServer(temporal.WithConfig(c), temporal.ForServices(temporal.DefaultServices), temporal.WithLogger(log.NewNoopLogger()),
		temporal.WithAuthorizer(authorization.NewNoopAuthorizer()),
		temporal.WithDynamicConfigClient(dynamicconfig.StaticClient{
			dynamicconfig.ForceSearchAttributesCacheRefreshOnRead.Key(): []dynamicconfig.ConstrainedValue{{Value: true}},
			dynamicconfig.FrontendMaxNamespaceRPSPerInstance.Key():      []dynamicconfig.ConstrainedValue{{Value: 100_000}},
			dynamicconfig.FrontendRPS.Key():                             []dynamicconfig.ConstrainedValue{{Value: 100_000}},
		}))
	if err != nil {
		return nil, fmt.Errorf("configure a Temporal server: %w", err)
	}
	if err := server.Start(); err != nil {
		return nil, fmt.Errorf("start a Temporal server: %w", err)
	}
	s := &Server{server, net.JoinHostPort(loopback, strconv.Itoa(o.Port))}
	if err := s.wait(ctx, o.Namespaces[0]); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// wait waits until the server responds.
func (s *Server) wait(ctx context.Context, namespace string) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	for {
		c, err := client.DialContext(ctx, client.Options{HostPort: s.address, Namespace: namespace, Logger: Quiet{}})
		if err == nil {
			_, err = c.CountWorkflow(ctx, &workflowservice.CountWorkflowExecutionsRequest{Namespace: namespace})
			c.Close()
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the Temporal server at %s does not respond: %w", s.address, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Address returns the server's host and port.
func (s *Server) Address() string { return s.address }

// Stop stops the server.
func (s *Server) Stop() error { return s.server.Stop() }

// configure creates the tables and namespaces and returns the server's configuration.
func configure(o Options) (*config.Config, error) {
	ports, err := freePorts(8)
	if err != nil {
		return nil, err
	}
	address := net.JoinHostPort(loopback, strconv.Itoa(o.Port))
	data := config.SQL{PluginName: sqlite.PluginName, DatabaseName: o.File, ConnectAttributes: map[string]string{"mode": "rwc",
		"_journal_mode": "wal", "_synchronous": "normal"}}
	if o.File == "" {
		data.DatabaseName = strconv.FormatUint(rand.Uint64(), 36) // #nosec G404 -- a name
		data.ConnectAttributes = map[string]string{"mode": "memory", "cache": "shared"}
	} else if _, err := os.Stat(o.File); errors.Is(err, os.ErrNotExist) {
		if err := schema.SetupSchema(&data); err != nil {
			return nil, fmt.Errorf("create the tables of the Temporal server: %w", err)
		}
	}
	for _, name := range o.Namespaces {
		n, err := schema.NewNamespaceConfig(one, name, false, nil)
		if err == nil {
			err = schema.CreateNamespaces(&data, n)
		}
		if err != nil {
			return nil, fmt.Errorf("create namespace %s: %w", name, err)
		}
	}
	c := &config.Config{
		Persistence: config.Persistence{DefaultStore: "data", VisibilityStore: "data", NumHistoryShards: 4,
			DataStores: map[string]config.DataStore{"data": {SQL: &data}}},
		ClusterMetadata: &cluster.Config{FailoverVersionIncrement: 10, MasterClusterName: one, CurrentClusterName: one,
			ClusterInformation: map[string]cluster.ClusterInformation{one: {Enabled: true, InitialFailoverVersion: 1, RPCAddress: address}}},
		DCRedirectionPolicy: config.DCRedirectionPolicy{Policy: "noop"},
		PublicClient:        config.PublicClient{HostPort: address},
		Archival: config.Archival{History: config.HistoryArchival{State: "disabled"},
			Visibility: config.VisibilityArchival{State: "disabled"}},
		NamespaceDefaults: config.NamespaceDefaults{Archival: config.ArchivalNamespaceDefaults{
			History:    config.HistoryArchivalNamespaceDefaults{State: "disabled"},
			Visibility: config.VisibilityArchivalNamespaceDefaults{State: "disabled"},
		}},
		Services: map[string]config.Service{},
	}
	c.Global.Membership = config.Membership{MaxJoinDuration: 30 * time.Second, BroadcastAddress: loopback}
	for i, service := range []string{"frontend", "history", "matching", "worker"} {
		rpc := config.RPC{GRPCPort: ports[2*i], MembershipPort: ports[2*i+1], BindOnIP: loopback}
		if service == "frontend" {
			rpc.GRPCPort = o.Port
		}
		c.Services[service] = config.Service{RPC: rpc}
	}
	return c, nil
}

// freePorts returns n free ports of the loopback address.
func freePorts(n int) (ports []int, err error) {
	for range n {
		l, err := net.Listen("tcp", loopback+":0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close() // closed only after the loop, so that the ports differ
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// Quiet is a client logger that discards everything.
type Quiet struct{}

// Debug implements the SDK's log.Logger.
func (Quiet) Debug(string, ...any) {}

// Info implements the SDK's log.Logger.
func (Quiet) Info(string, ...any) {}

// Warn implements the SDK's log.Logger.
func (Quiet) Warn(string, ...any) {}

// Error implements the SDK's log.Logger.
func (Quiet) Error(string, ...any) {}
