package main

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestEmbeddedServiceDelivery(t *testing.T) {
	is := is.New(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	is.NoErr(err)
	addr := listener.Addr().String()
	is.NoErr(listener.Close())
	ctx, stop := context.WithCancel(t.Context())
	delivered, ended := make(chan string, 1), make(chan error, 1)
	database := pgtest.EmptyURL(t)
	go func() { ended <- serve(ctx, database, addr, func(text string) error { delivered <- text; return nil }) }()
	pgtest.Wait(t, "the service accepts", func() bool {
		response, err := http.Post("http://"+addr+"/greet/ada", "", nil)
		if err != nil {
			return false
		}
		defer response.Body.Close()
		return response.StatusCode == http.StatusAccepted
	})
	is.Equal(<-delivered, "hello ada") // both steps ran
	stop()
	is.NoErr(<-ended) // the program drains and exits
}

func TestEmbeddedServiceLineCount(t *testing.T) {
	is := is.New(t)
	source, err := os.ReadFile("main.go")
	is.NoErr(err)
	is.True(bytes.Count(source, []byte("\n")) < 60) // the documentation promises that the program has fewer than 60 lines
}
