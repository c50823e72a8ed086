// Package env configures the HTTP API from environment variables, as the trapeze command does:
//
//	config, err := env.Load()        // reports every mistake at once and names the variables
//	options, err := config.Options() // reads the files that the variables name
//	api.Mount(e.Group("/trapeze"), r, options)
//
// Package runner/env does the same for the runner. The variables are listed in docs/reference.md.
package env

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/envvar"
)

// Config holds the API's settings.
type Config struct {
	// Addr is TRAPEZE_HTTP_ADDR, the address to listen on: an IP address and a port. Port 0 selects a free port. A host program may listen
	// elsewhere. Default 127.0.0.1:8080.
	Addr string
	// Auth is TRAPEZE_AUTH: token, jwt, header or none. With none, every request from this machine has all permissions, and every other
	// request is rejected. Default: none if Addr is a loopback address and TRAPEZE_TOKENS_FILE is not set, else token.
	Auth string

	vars envvar.API
}

// Load reads the environment, but not the files named in it. Its error joins one error per mistake, each of which names the variable and
// its valid values. Unknown variables are reported by Load in runner/env.
func Load() (Config, error) {
	v, err := envvar.Read[envvar.API]()
	addr, addrErr := listenAddr(v.Addr)
	if addrErr != nil {
		addr = "127.0.0.1:0" // so that an invalid address causes no second error
	}
	c := Config{Addr: addr, Auth: v.Auth, vars: v}
	if !envvar.IsSet("TRAPEZE_AUTH") && v.TokensFile == "" && c.OnLoopback() {
		c.Auth = "none" // so that a first start needs no configuration
	}
	if err := errors.Join(err, addrErr, c.validate()); err != nil {
		return Config{}, err
	}
	return c, nil
}

// OnLoopback reports whether Addr can be reached only from this machine.
func (c Config) OnLoopback() bool {
	host, _, err := net.SplitHostPort(c.Addr)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}

// listenAddr checks the address to listen on. An address without a host means the loopback address, because access from other machines must
// be requested explicitly.
func listenAddr(addr string) (string, error) {
	wrong := func(format string, args ...any) (string, error) {
		return "", fmt.Errorf("TRAPEZE_HTTP_ADDR=%q: "+format, append([]any{addr}, args...)...)
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return wrong("want host:port, such as 127.0.0.1:8080")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return wrong("port %q: want 0 (a free one) to 65535", port)
	}
	ip := net.ParseIP(host)
	switch {
	case host == "", host == "localhost":
		return net.JoinHostPort("127.0.0.1", port), nil
	case ip != nil:
		return addr, nil
	}
	return wrong("host %q: want an IP address, such as 127.0.0.1, or 0.0.0.0 for all interfaces", host)
}

// validate reports conflicting variables.
func (c Config) validate() error {
	var wrong envvar.Checks
	v := c.vars
	switch c.Auth {
	case "token":
		wrong.That(v.TokensFile != "", "TRAPEZE_TOKENS_FILE is not set: required by TRAPEZE_AUTH=token, and by a TRAPEZE_HTTP_ADDR that is not a loopback address")
	case "jwt":
		wrong.That(v.JWTKeysFile != "", "TRAPEZE_JWT_KEYS_FILE is not set: required by TRAPEZE_AUTH=jwt")
	case "header":
		wrong.That(len(v.TrustedProxies) > 0, "TRAPEZE_TRUSTED_PROXIES is not set: required by TRAPEZE_AUTH=header, the addresses of proxies whose headers are trusted")
	case "none":
		wrong.That(c.OnLoopback(), "TRAPEZE_AUTH=none gives every request all permissions: it needs a loopback address, not TRAPEZE_HTTP_ADDR=%q", v.Addr)
	default:
		wrong.That(false, "TRAPEZE_AUTH=%q: want token, jwt, header or none", c.Auth)
	}
	_, err := api.TrustedProxies(v.TrustedProxies)
	wrong.That(err == nil, "TRAPEZE_TRUSTED_PROXIES: %w", err)
	wrong.That((v.TLSCert == "") == (v.TLSKey == ""), "TRAPEZE_TLS_CERT and TRAPEZE_TLS_KEY: want both or neither")
	wrong.That(v.TLSClientCA == "" || v.TLSCert != "", "TRAPEZE_TLS_CLIENT_CA needs TRAPEZE_TLS_CERT")
	wrong.That(v.StreamsPerPrincipal >= 1 && v.StreamsPerPrincipal <= 10_000, "TRAPEZE_STREAMS_PER_PRINCIPAL=%d: want 1 to 10000", v.StreamsPerPrincipal)
	return errors.Join(wrong...)
}

// Options returns the API's options. It reads the token or key file; later changes to the file take effect without a restart. An error
// names the variable at fault.
func (c Config) Options() (api.Options, error) {
	proxies, err := api.TrustedProxies(c.vars.TrustedProxies)
	o := api.Options{TrustedProxies: proxies, Streams: api.StreamOptions{MostEach: c.vars.StreamsPerPrincipal}}
	if err != nil {
		return o, fmt.Errorf("TRAPEZE_TRUSTED_PROXIES: %w", err)
	}
	switch c.Auth {
	case "token":
		tokens, err := api.TokenFile(c.vars.TokensFile)
		if err != nil {
			return o, fmt.Errorf("TRAPEZE_TOKENS_FILE: %w", err)
		}
		o.Authenticate, o.Login = tokens.Authenticate, tokens.Login
	case "jwt":
		signed, err := api.KeysFile(c.vars.JWTKeysFile)
		if err != nil {
			return o, fmt.Errorf("TRAPEZE_JWT_KEYS_FILE: %w", err)
		}
		o.Authenticate, o.Login = signed.Authenticate, signed.Login
	case "header":
		// On a loopback address, a web page whose host name resolves to that address could also send the trusted headers.
		o.Authenticate, o.LoopbackOnly, o.Hosts = proxies.Authenticate, c.OnLoopback(), c.vars.Hosts
		o.Challenge = `X-Forwarded-User realm="trapeze"` // the header that the proxy must set
	case "none":
		o.InsecureAllowAll, o.LoopbackOnly, o.Streams.MostEach = true, true, 0 // without authentication, all requests share one principal
	default:
		return o, fmt.Errorf("TRAPEZE_AUTH=%q: want token, jwt, header or none", c.Auth)
	}
	return o, nil
}

// Warnings returns a line for each setting that is valid but likely to be a mistake. The program that serves the API should log these
// lines.
func (c Config) Warnings() (list []string) {
	if c.Auth == "none" {
		list = append(list, "no authentication: every request from this machine has all permissions; set TRAPEZE_TOKENS_FILE or TRAPEZE_AUTH")
	} else if c.vars.TLSCert == "" && len(c.vars.TrustedProxies) == 0 && !c.OnLoopback() {
		list = append(list, "tokens cross the network unencrypted: set TRAPEZE_TLS_CERT, or TRAPEZE_TRUSTED_PROXIES if a proxy terminates TLS")
	}
	for _, file := range []struct{ variable, path string }{{"TRAPEZE_TOKENS_FILE", c.vars.TokensFile}, {"TRAPEZE_TLS_KEY", c.vars.TLSKey}} {
		if info, err := os.Stat(file.path); err == nil && info.Mode().Perm()&0o004 != 0 {
			list = append(list, fmt.Sprintf("%s=%q: every account on this machine can read the file: remove the permission with chmod o-r", file.variable, file.path))
		}
	}
	return list
}

// TLS returns the TLS configuration of an HTTPS server, or nil if TRAPEZE_TLS_CERT is not set. If TRAPEZE_TLS_CLIENT_CA is set, every
// client must present a certificate signed by that CA. An error names the variable at fault.
func (c Config) TLS() (*tls.Config, error) {
	if c.vars.TLSCert == "" {
		return nil, nil
	}
	read := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(c.vars.TLSCert, c.vars.TLSKey)
		return &pair, err
	}
	if _, err := read(); err != nil {
		return nil, fmt.Errorf("TRAPEZE_TLS_CERT, TRAPEZE_TLS_KEY: %w", err)
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		// The certificate is read at each handshake, so that renewing it needs no restart. Handshakes are rare enough for this.
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return read() },
	}
	if c.vars.TLSClientCA != "" {
		raw, err := os.ReadFile(c.vars.TLSClientCA)
		if err != nil {
			return nil, fmt.Errorf("TRAPEZE_TLS_CLIENT_CA: %w", err)
		}
		config.ClientCAs, config.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !config.ClientCAs.AppendCertsFromPEM(raw) {
			return nil, fmt.Errorf("TRAPEZE_TLS_CLIENT_CA: %s has no PEM certificate", c.vars.TLSClientCA)
		}
	}
	return config, nil
}
