package e2e

import (
	"github.com/trapeze-run/trapeze/internal/cli"

	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestServeTokenAuthenticationOverTLS(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	dir := t.TempDir()
	tokens, cert, key := filepath.Join(dir, "tokens.json"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	is.NoErr(os.WriteFile(tokens, []byte(`{"tokens":[{"token":"vic-0123456789-0123456789","name":"vic","roles":["viewer"]}]}`), 0o600))
	pool := selfSigned(t, cert, key)
	p := serve(t, pgtest.URL(t), []string{"TRAPEZE_TOKENS_FILE=" + tokens, "TRAPEZE_TLS_CERT=" + cert, "TRAPEZE_TLS_KEY=" + key})
	is.True(strings.HasPrefix(p.HTTP, "https://127.0.0.1:"))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}}
	status := func(token string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), "GET", p.HTTP+"/jobs", nil)
		is.NoErr(err)
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := client.Do(request)
		is.NoErr(err)
		defer response.Body.Close()
		return response.StatusCode, response.Proto
	}
	got, proto := status("")
	is.Equal(got, http.StatusUnauthorized)
	is.Equal(proto, "HTTP/2.0")
	got, _ = status("vic-0123456789-0123456789")
	is.Equal(got, http.StatusOK)
	request, err := http.NewRequestWithContext(t.Context(), "POST", p.HTTP+"/ui/login", strings.NewReader("token=vic-0123456789-0123456789"))
	is.NoErr(err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Host = "jobs.example"
	response, err := client.Do(request)
	is.NoErr(err)
	defer response.Body.Close()
	is.Equal(response.Header.Get("Strict-Transport-Security"), "max-age=31536000")
	is.True(strings.HasPrefix(response.Header.Get("Set-Cookie"), "__Host-trapeze_session="))
	p.signal(syscall.SIGTERM)
	is.Equal(p.end(), 0)
}

func TestServeWithInvalidTokenFile(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	tokens := filepath.Join(t.TempDir(), "tokens.json")
	is.NoErr(os.WriteFile(tokens, []byte(`{"tokens":[{"token":"short","name":"vic"}]}`), 0o600))
	s := trapeze(t, []string{"DATABASE_URL=" + pgtest.EmptyURL(t), "TRAPEZE_TOKENS_FILE=" + tokens, "TRAPEZE_HTTP_ADDR=127.0.0.1:0"}, "serve")
	is.Equal(s.code, cli.CodeUsage)
	is.True(strings.Contains(s.err, "token 1: want 20 characters to 8192 bytes"))
	is.Equal(s.out, "") // the pod never became ready
}

// selfSigned writes a certificate for 127.0.0.1 and returns a pool that trusts it.
func selfSigned(t *testing.T, cert, key string) *x509.CertPool {
	t.Helper()
	is := is.New(t)
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	is.NoErr(err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	is.NoErr(err)
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	is.NoErr(err)
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	is.NoErr(os.WriteFile(cert, chain, 0o600))
	is.NoErr(os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600))
	pool := x509.NewCertPool()
	is.True(pool.AppendCertsFromPEM(chain))
	return pool
}

// A malicious web page can make its host name resolve to 127.0.0.1 and send headers that the pod trusts if they come from a proxy on that
// address.
func TestLoopbackHeaderAuthenticationHostNames(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	db := database{t, pgtest.URL(t)}
	p := serve(t, db.url, []string{"TRAPEZE_AUTH=header", "TRAPEZE_TRUSTED_PROXIES=127.0.0.1", "TRAPEZE_HOSTS=jobs.example"})
	asks := func(host string) int {
		request, err := http.NewRequestWithContext(t.Context(), "GET", p.HTTP+"/jobs", nil)
		is.NoErr(err)
		request.Header.Set("X-Forwarded-User", "eve")
		request.Header.Set("X-Forwarded-Groups", "platform_admin")
		if host != "" {
			request.Host = host
		}
		response, err := http.DefaultClient.Do(request)
		is.NoErr(err)
		response.Body.Close()
		return response.StatusCode
	}
	is.Equal(asks("evil.example"), http.StatusForbidden)
	is.Equal(asks(""), http.StatusOK)
	is.Equal(asks("jobs.example"), http.StatusOK) // the host name that the proxy passes on
}
