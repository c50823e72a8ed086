package env

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"

	"github.com/trapeze-run/trapeze/api"
)

// openOnLoopback is what TRAPEZE_AUTH means when neither it nor a tokens file is given and the address is a loopback one: none, so that
// the first start needs no settings. Everywhere else the default is token, which needs its file.
func (c *Settings) openOnLoopback() {
	if os.Getenv("TRAPEZE_AUTH") == "" && c.TokensFile == "" && c.OnLoopback() {
		c.Auth = "none"
	}
}

// OnLoopback reports whether the address to listen on is one of this machine alone.
func (c *Settings) OnLoopback() bool {
	addr, err := ListenAddr(c.HTTPAddr)
	if err != nil {
		return false
	}
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}

// validateAuth reports what is missing or contradicts itself in the variables about permissions and TLS.
func (c *Settings) validateAuth() (errs []error) {
	complain := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	switch c.Auth {
	case "token":
		complain(c.TokensFile != "", "TRAPEZE_TOKENS_FILE: TRAPEZE_AUTH=token needs it, and so does any TRAPEZE_HTTP_ADDR but a loopback address")
	case "jwt":
		complain(c.JWTKeysFile != "", "TRAPEZE_JWT_KEYS_FILE: TRAPEZE_AUTH=jwt needs it")
	case "header":
		complain(len(c.TrustedProxies) > 0, "TRAPEZE_TRUSTED_PROXIES: TRAPEZE_AUTH=header needs it: the addresses whose headers are believed")
	case "none":
		complain(c.OnLoopback(), "TRAPEZE_AUTH=none lets everybody do everything: it needs a loopback address, not TRAPEZE_HTTP_ADDR=%q", c.HTTPAddr)
	default:
		complain(false, "TRAPEZE_AUTH=%q: want token, jwt, header or none", c.Auth)
	}
	_, err := api.TrustedProxies(c.TrustedProxies)
	complain(err == nil, "TRAPEZE_TRUSTED_PROXIES: %w", err)
	complain((c.TLSCert == "") == (c.TLSKey == ""), "TRAPEZE_TLS_CERT and TRAPEZE_TLS_KEY: want both or neither")
	complain(c.TLSClientCA == "" || c.TLSCert != "", "TRAPEZE_TLS_CLIENT_CA: it needs TRAPEZE_TLS_CERT")
	return errs
}

// TLSConfig is nil without a certificate. With a client CA, whoever connects shows a certificate of it.
func (c *Settings) TLSConfig() (*tls.Config, error) {
	if c.TLSCert == "" {
		return nil, nil
	}
	read := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(c.TLSCert, c.TLSKey)
		return &pair, err
	}
	if _, err := read(); err != nil {
		return nil, fmt.Errorf("TRAPEZE_TLS_CERT, TRAPEZE_TLS_KEY: %w", err)
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		// Read at each handshake, of which there are few: a renewed certificate needs no restart.
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return read() },
	}
	if c.TLSClientCA != "" {
		raw, err := os.ReadFile(c.TLSClientCA)
		if err != nil {
			return nil, fmt.Errorf("TRAPEZE_TLS_CLIENT_CA: %w", err)
		}
		config.ClientCAs, config.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !config.ClientCAs.AppendCertsFromPEM(raw) {
			return nil, fmt.Errorf("TRAPEZE_TLS_CLIENT_CA: %s holds no certificate in PEM", c.TLSClientCA)
		}
	}
	return config, nil
}
