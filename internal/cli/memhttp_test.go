package cli_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/cli"
)

func clientOf(handler http.HandlerFunc) (*http.Client, *cli.Transport) {
	transport := &cli.Transport{Handler: handler, RemoteAddr: "cli"}
	return &http.Client{Transport: transport}, transport
}

func TestMemoryHTTPRoundTrip(t *testing.T) {
	is := is.New(t)
	web, transport := clientOf(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		is.NoErr(err)
		w.Header().Set("Location", "/jobs/7")
		w.WriteHeader(http.StatusAccepted)
		w.Header().Set("Too-Late", "yes")
		fmt.Fprint(w, r.Method, " ", r.RequestURI, " ", r.RemoteAddr, " ", string(body))
	})
	defer transport.Close()
	response, err := web.Post("http://here/jobs?dry_run=true", "application/json", strings.NewReader(`{"a":1}`))
	is.NoErr(err)
	defer response.Body.Close()
	is.Equal(response.StatusCode, http.StatusAccepted)
	is.Equal(response.Header, http.Header{"Location": {"/jobs/7"}}) // without changes made after WriteHeader
	body, err := io.ReadAll(response.Body)
	is.NoErr(err)
	is.Equal(string(body), `POST /jobs?dry_run=true cli {"a":1}`)
}

func TestStreamedInProcessResponse(t *testing.T) {
	is := is.New(t)
	read := make(chan struct{})
	ended := make(chan error, 1)
	web, transport := clientOf(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "first")
		<-read
		fmt.Fprintln(w, "second")
		<-r.Context().Done() // blocks until the client closes the response
		_, err := fmt.Fprintln(w, "third")
		ended <- err
	})
	response, err := web.Get("http://here/events/stream")
	is.NoErr(err)
	lines := bufio.NewScanner(response.Body)
	is.True(lines.Scan())
	is.Equal(lines.Text(), "first")
	close(read) // allows the handler to write the second line
	is.True(lines.Scan())
	is.Equal(lines.Text(), "second")
	is.NoErr(response.Body.Close())
	is.True(errors.Is(<-ended, io.ErrClosedPipe)) // the handler gets an error, because the client has closed the response
	transport.Close()
}

func TestContextEndDuringResponse(t *testing.T) {
	is := is.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	web, transport := clientOf(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "a part")
		<-r.Context().Done()
	})
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://here/", nil)
	is.NoErr(err)
	response, err := web.Do(request)
	is.NoErr(err)
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	_, err = lines.ReadString('\n')
	is.NoErr(err)
	cancel()
	_, err = lines.ReadString('\n')
	is.True(errors.Is(err, context.Canceled)) // the partial response ends with an error, not with io.EOF
	transport.Close()
}

func TestTruncatedMemoryHTTPResponse(t *testing.T) {
	is := is.New(t)
	web, transport := clientOf(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/part" {
			fmt.Fprintln(w, "a part")
		}
		panic(http.ErrAbortHandler)
	})
	defer transport.Close()
	_, err := web.Get("http://here/none")
	is.True(errors.Is(err, io.ErrUnexpectedEOF))
	response, err := web.Get("http://here/part")
	is.NoErr(err)
	defer response.Body.Close()
	part, err := io.ReadAll(response.Body)
	is.Equal(string(part), "a part\n")
	is.True(errors.Is(err, io.ErrUnexpectedEOF))
}
