package access

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"
)

// showing returns a request from a client whose certificate was verified in the TLS handshake.
func showing(leaf *x509.Certificate, header ...string) *http.Request {
	r := asking(header...)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}, VerifiedChains: [][]*x509.Certificate{{leaf}}}
	return r
}

func certificate(commonName string, uris ...string) *x509.Certificate {
	leaf := &x509.Certificate{Subject: pkix.Name{CommonName: commonName}, NotAfter: time.Now().Add(time.Hour)}
	for _, text := range uris {
		uri, err := url.Parse(text)
		if err != nil {
			panic(err)
		}
		leaf.URIs = append(leaf.URIs, uri)
	}
	return leaf
}

func TestClientCertificateInTokenFile(t *testing.T) {
	is := is.New(t)
	tokens, err := TokenFile(written(t, `{"tokens":[`+line(anasToken, "ana")+`,
		{"certificate":"gpu-1","name":"gpu","roles":["worker"],"kinds":["gpu.*"],"lanes":["gpu"]},
		{"certificate":"spiffe://example.org/ocr","name":"ocr","roles":["worker"]}]}`))
	is.NoErr(err)
	p, err := tokens.Authenticate(showing(certificate("gpu-1")))
	is.NoErr(err)
	is.Equal(p.Name, "gpu")
	is.Equal(p.Roles, []string{"worker"})
	is.True(p.MayRun("gpu.render") && !p.MayRun("mail") && p.MayUse("gpu") && !p.MayUse("default")) // like a token, a certificate can be bound to kinds and lanes
	p, err = tokens.Authenticate(showing(certificate("", "spiffe://example.org/ocr")))
	is.NoErr(err)
	is.Equal(p.Name, "ocr")
	p, err = tokens.Authenticate(showing(certificate("gpu-1"), "Authorization", "Bearer "+anasToken))
	is.NoErr(err)
	is.Equal(p.Name, "ana") // the token takes precedence over the certificate
}

func TestClientCertificateMissingFromFile(t *testing.T) {
	is := is.New(t)
	tokens, err := TokenFile(written(t, `{"tokens":[`+line(anasToken, "ana")+`,{"certificate":"gpu-1","name":"gpu","roles":["worker"]},
		{"certificate":"spiffe://example.org/ocr","name":"ocr","roles":["worker"]}]}`))
	is.NoErr(err)
	over := certificate("gpu-1")
	over.NotAfter = time.Now().Add(-time.Minute)
	unverified := showing(certificate("gpu-1"))
	unverified.TLS.VerifiedChains = nil
	for name, r := range map[string]*http.Request{
		"an unknown name":                        showing(certificate("gpu-2")),
		"no name":                                showing(certificate("")),
		"a common name that looks like a URI":    showing(certificate("spiffe://example.org/ocr")),
		"a URI that looks like a common name":    showing(certificate("", "gpu-1")),
		"an unverified one":                      unverified,
		"one that is over":                       showing(over),
		"one beside a wrong token":               showing(certificate("gpu-1"), "Authorization", "Bearer "+bobsToken),
		"one beside a session that is not one":   showing(certificate("gpu-1"), "Cookie", SessionCookie+"=x"),
		"a connection without TLS":               asking(),
		"the certificate's name where tokens go": asking("Authorization", "Bearer gpu-1"),
	} {
		p, err := tokens.Authenticate(r)
		if !errors.Is(err, ErrUnauthenticated) && !errors.Is(err, ErrUnknownCertificate) || p.Name != "" {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	_, err = tokens.Authenticate(showing(certificate("gpu-2")))
	is.True(errors.Is(err, ErrUnknownCertificate) && strings.Contains(err.Error(), `"gpu-2"`)) // the error names the certificate
}

func TestTokenFileInvalidCertificateEntries(t *testing.T) {
	is := is.New(t)
	_, err := TokenFile(written(t, `{"tokens":[{"certificate":"a","token":"`+anasToken+`","name":"a"},{"certificate":" b","name":"b"},
		{"certificate":"c","name":"c"},{"certificate":"c","name":"c"},{"certificate":"d","name":"","kinds":["["]}]}`))
	for _, part := range []string{"token 1: want a token or a certificate", "token 2: certificate: want at most", `token 4: certificate "c" is listed twice`, "token 5: name:", `token 5: "["`} {
		is.True(err != nil && strings.Contains(err.Error(), part)) // the error reports every mistake
	}
	is.True(!strings.Contains(err.Error(), anasToken)) // the error quotes no token
}
