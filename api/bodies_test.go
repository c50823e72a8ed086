package api_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/api"
)

func TestBrokenRequestBody(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	at, err := url.Parse(guarded(t, api.Options{}).url)
	is.NoErr(err)
	for name, rest := range map[string]string{
		"truncated":           "Content-Length: 100\r\n\r\n{\"kind\":",
		"truncated in chunks": "Transfer-Encoding: chunked\r\n\r\n8\r\n{\"kind\":\r\n",
		"a malformed chunk":   "Transfer-Encoding: chunked\r\n\r\nzz\r\n{\"kind\":\"echo\"}\r\n0\r\n\r\n",
		"a chunk without end": "Transfer-Encoding: chunked\r\n\r\n3\r\n{\"kind\":\"echo\"}\r\n0\r\n\r\n",
	} {
		for path, media := range map[string]string{"/jobs": "application/json", "/jobs/1/retry": "application/json", "/ui/login": "application/x-www-form-urlencoded"} {
			conn, err := net.Dial("tcp", at.Host)
			is.NoErr(err)
			_, err = fmt.Fprintf(conn, "POST %s%s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: %s\r\n%s", at.Path, path, at.Host, anasToken, media, rest)
			is.NoErr(err)
			is.NoErr(conn.(*net.TCPConn).CloseWrite())
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			is.NoErr(err)
			text, err := io.ReadAll(answer.Body)
			is.NoErr(err)
			is.NoErr(conn.Close())
			if answer.StatusCode != http.StatusBadRequest || !strings.Contains(string(text), "request body incomplete or malformed") {
				t.Errorf("%s, %s: %d %s", name, path, answer.StatusCode, text)
			}
		}
	}
}
