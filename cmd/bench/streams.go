package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/runner"
)

// streams measures the cost of a client with an idle stream, and how long an event takes to arrive while thousands of clients are
// connected.
func (b *lab) streams(ctx context.Context) (l line, err error) {
	n := b.size(2000)
	l = line{What: "idle clients that each watch a job, a pipeline or everything: memory of the pod, including the clients' sockets; then the delay from a submission to its event on another stream, 100 times",
		Goal: "< 40 KB per client; no database connections for clients; lag p99 < 2 s"}
	g, err := b.rig(ctx, runner.Options{})
	if err != nil {
		return l, err
	}
	defer g.close()
	runner.Handle(g.r, func(context.Context, *runner.Job[noop]) (*runner.Outcome, error) { return nil, nil })
	g.start(ctx)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return l, err
	}
	e := echo.New()
	api.Mount(e.Group(""), g.r, api.Options{InsecureAllowAll: true})
	web := &http.Server{Handler: e, ConnContext: api.ConnContext}
	go func() { _ = web.Serve(listener) }()
	g.end = append(g.end, func() { _ = web.Close() })
	made, err := g.r.Enqueue(ctx, noop{}, runner.Delay(time.Hour))
	if err != nil {
		return l, err
	}
	paths := []string{fmt.Sprintf("/jobs/%d/stream", made.ID), fmt.Sprintf("/pipelines/%d/stream", made.ID), "/events/stream"}
	first, err := watchRaw(listener.Addr().String(), paths[2]) // allocates everything that clients share
	if err != nil {
		return l, err
	}
	defer first.Close()

	before, connections := memoryInUse(), g.connections(ctx)
	for i := range n {
		conn, err := watchRaw(listener.Addr().String(), paths[i%len(paths)])
		if err != nil {
			return l, err
		}
		defer conn.Close()
	}
	l.set("idle clients", float64(n))
	l.set("KB a client", float64(memoryInUse()-before)/float64(n)/1024)
	l.set("additional database connections", float64(g.connections(ctx)-connections))

	reads := bufio.NewReader(first)
	var late []float64
	for range b.size(100) {
		began := time.Now()
		made, err := g.r.Enqueue(ctx, noop{})
		if err != nil {
			return l, err
		}
		if err := first.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			return l, err
		}
		for text := ""; !strings.Contains(text, fmt.Sprintf(`"job":"%d","event_no":1,`, made.ID)); {
			if text, err = reads.ReadString('\n'); err != nil {
				return l, fmt.Errorf("read the stream of everything: %w", err)
			}
		}
		late = append(late, ms(time.Since(began)))
	}
	slices.Sort(late)
	report(&l, "submission to event ms", late)
	return l, nil
}

// watchRaw opens a stream and reads its snapshot. The client consists only of a socket.
func watchRaw(address, path string) (net.Conn, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(conn, "GET %s?after=now HTTP/1.1\r\nHost: %s\r\n\r\n", path, address); err != nil {
		return nil, err
	}
	var text strings.Builder
	for part := make([]byte, 2048); !strings.Contains(text.String(), "event: snapshot"); {
		n, err := conn.Read(part)
		if err != nil && err != io.EOF {
			return nil, err
		}
		if text.Write(part[:n]); n == 0 {
			return nil, fmt.Errorf("no stream: %s", text.String())
		}
	}
	return conn, nil
}

// memoryInUse returns this process's memory use, excluding memory that can be reused.
func memoryInUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

func (g *rig) connections(ctx context.Context) (n int) {
	_ = g.pool.QueryRow(ctx, `select count(*) from pg_stat_activity where datname = current_database()`).Scan(&n)
	return n
}
