package e2e

import (
	"github.com/trapeze-run/trapeze/internal/cli"

	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/job"
)

// authority is a CA that writes the certificates it issues to a directory.
type authority struct {
	t    *testing.T
	dir  string
	name string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, dir, name string) *authority {
	t.Helper()
	a := &authority{t: t, dir: dir, name: name}
	a.cert, a.key = a.issue(name, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, time.Hour)
	return a
}

// issue writes a certificate and its key to name.pem and name.key.
func (a *authority) issue(name string, template *x509.Certificate, lasts time.Duration) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	is := is.New(a.t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	is.NoErr(err)
	template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(lasts)
	if template.Subject.CommonName == "" {
		template.Subject = pkix.Name{CommonName: name}
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	is.NoErr(err)
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	is.NoErr(err)
	is.NoErr(os.WriteFile(a.pem(name), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	is.NoErr(os.WriteFile(a.keyOf(name), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600))
	cert, err := x509.ParseCertificate(der)
	is.NoErr(err)
	return cert, key
}

// client issues a client certificate.
func (a *authority) client(name string, lasts time.Duration, uris ...string) {
	template := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, text := range uris {
		uri, err := url.Parse(text)
		is.New(a.t).NoErr(err)
		template.URIs = append(template.URIs, uri)
	}
	a.issue(name, template, lasts)
}

func (a *authority) pem(name string) string   { return filepath.Join(a.dir, name+".pem") }
func (a *authority) keyOf(name string) string { return filepath.Join(a.dir, name+".key") }

// A worker can authenticate with a certificate instead of a token. Like a token, the certificate binds the worker to kinds. A worker whose
// certificate is not trusted learns immediately why it was rejected.
func TestRemoteWorkerCertificate(t *testing.T) {
	is := is.New(t)
	dir := t.TempDir()
	ours, others := newAuthority(t, dir, "ours"), newAuthority(t, dir, "others")
	ours.issue("pod", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, time.Hour)
	ours.client("gpu-1", time.Hour)
	ours.client("gpu-9", time.Hour)
	ours.client("late", -time.Minute)
	ours.client("ocr", time.Hour, "spiffe://example.org/ocr")
	others.client("stranger", time.Hour)
	tokens := filepath.Join(dir, "tokens.json")
	is.NoErr(os.WriteFile(tokens, []byte(`{"tokens":[
		{"certificate":"gpu-1","name":"gpu","roles":["worker"],"kinds":["demo.sleep"]},
		{"certificate":"late","name":"late","roles":["worker"]},
		{"certificate":"stranger","name":"stranger","roles":["worker"]},
		{"certificate":"spiffe://example.org/ocr","name":"ocr","roles":["worker"],"kinds":["demo.echo"]}]}`), 0o600))
	db := database{t, pgtest.URL(t)}
	p := dispatcher(t, db, "TRAPEZE_TOKENS_FILE="+tokens, "TRAPEZE_TLS_CERT="+ours.pem("pod"), "TRAPEZE_TLS_KEY="+ours.keyOf("pod"), "TRAPEZE_TLS_CLIENT_CA="+ours.pem("ours"))

	for _, c := range []struct{ who, kinds, ca, says string }{
		{"gpu-9", "demo.sleep", "ours", "gpu-9"},                    // a name missing from the token file
		{"gpu-1", "demo.sleep,demo.echo", "ours", "demo.echo"},      // a kind to which the certificate is not bound
		{"late", "demo.sleep", "ours", "expired"},                   // an expired certificate
		{"stranger", "demo.sleep", "ours", "untrusted certificate"}, // a certificate from another CA
		{"", "demo.sleep", "ours", "certificate required"},          // no certificate
		{"gpu-1", "demo.sleep", "others", "certificate signed by"},  // the worker does not trust the pod
	} {
		flags := []string{"--ca", ours.pem(c.ca)}
		if c.who != "" {
			flags = append(flags, "--cert", ours.pem(c.who), "--key", ours.keyOf(c.who))
		}
		said := trapeze(t, []string{"TRAPEZE_DEMO_HANDLERS=true", "TRAPEZE_KINDS=" + c.kinds}, append([]string{"worker", "--server", p.HTTP}, flags...)...)
		if said.code != cli.CodeRefused || !strings.Contains(said.err, c.says) {
			t.Errorf("%q with %s: exit code %d: %s", c.who, c.kinds, said.code, said.err)
		}
	}

	worker := func(who, kinds string) *far {
		return startFarWith(t, p.HTTP, []string{"--ca", ours.pem("ours"), "--cert", ours.pem(who), "--key", ours.keyOf(who)}, "TRAPEZE_KINDS="+kinds)
	}
	worker("gpu-1", "demo.sleep")
	ocr := worker("ocr", "demo.echo")
	db.inState(db.enqueue("demo.sleep", "--args", `{"ms":1}`), job.Succeeded)
	db.inState(db.enqueue("demo.echo"), job.Succeeded)
	ocr.signal(syscall.SIGTERM)
	is.Equal(ocr.end(), cli.CodeOK)
}
