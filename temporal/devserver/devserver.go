// Package devserver starts an in-process Temporal server for tests and demos. The server keeps everything in memory.
package devserver

import (
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/server/common/dynamicconfig"
	"go.temporal.io/server/temporal"
	"go.temporal.io/server/temporaltest"
)

// Server is a Temporal server with one namespace.
type Server struct{ it *temporaltest.TestServer }

// Start starts a server on a free port of the loopback interface. It panics if the server does not start.
func Start() *Server {
	return &Server{temporaltest.NewServer(temporaltest.WithBaseServerOptions(temporal.WithDynamicConfigClient(settings)))}
}

// settings tune the server for a single process. If a task queue has several partitions, a task in one can wait while workers poll another.
var settings = dynamicconfig.StaticClient{
	dynamicconfig.ForceSearchAttributesCacheRefreshOnRead.Key(): value(true),
	dynamicconfig.MatchingNumTaskqueueReadPartitions.Key():      value(1),
	dynamicconfig.MatchingNumTaskqueueWritePartitions.Key():     value(1),
	dynamicconfig.EnableActivityEagerExecution.Key():            value(true),
}

func value(v any) []dynamicconfig.ConstrainedValue {
	return []dynamicconfig.ConstrainedValue{{Value: v}}
}

// Address returns the server's address in the form that [client.Options] expects.
func (s *Server) Address() string { return s.it.GetFrontendHostPort() }

// Namespace returns the server's namespace.
func (s *Server) Namespace() string { return s.it.GetDefaultNamespace() }

// Dial returns a client that is connected to the server.
func (s *Server) Dial(logger sdklog.Logger) (client.Client, error) {
	return client.Dial(client.Options{HostPort: s.Address(), Namespace: s.Namespace(), Logger: logger})
}

// Stop stops the server.
func (s *Server) Stop() { s.it.Stop() }
