// Package env configures the HTTP API by environment variables, as the command trapeze does:
//
//	config, err := env.Load()        // every mistake at once, each with its variable
//	options, err := config.Options() // reads the files that the variables name
//	api.Mount(e.Group("/trapeze"), r, options)
//
// Package runner/env does the same for the runner. The variables are listed in docs/reference.md.
package env

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/trapeze-run/trapeze/api"
	"github.com/trapeze-run/trapeze/internal/envvar"
)

// Config is the part of the environment that configures the API.
type Config struct {
	// Addr is TRAPEZE_HTTP_ADDR, where to listen: an IP address and a port, of which 0 is a free one. A host may listen elsewhere. Default
	// 127.0.0.1:8080.
	Addr string
	// Auth is TRAPEZE_AUTH: token, jwt, header or none. none lets every request from this machine do everything, and no other request
	// anything. It is the default when Addr is a loopback address and there is no TRAPEZE_TOKENS_FILE; elsewhere the default is token.
	Auth string

	vars envvar.API
}

// Load reads the environment, but none of the files that it names. Its error joins one for each mistake, which names the variable and the
// values that it takes. Variables that do not exist are errors of runner/env's Load.
func Load() (Config, error) {
	v, err := envvar.Read[envvar.API]()
	c := Config{Addr: v.Addr, Auth: v.Auth, vars: v}
	addr, addrErr := listenAddr(v.Addr)
	if addrErr == nil {
		c.Addr = addr
	}
	if os.Getenv("TRAPEZE_AUTH") == "" && v.TokensFile == "" && c.OnLoopback() {
		c.Auth = "none" // the first start needs no settings
	}
	if err := errors.Join(err, addrErr, c.validate()); err != nil {
		return Config{}, err
	}
	return c, nil
}

// OnLoopback reports whether Addr is reached from this machine alone.
func (c Config) OnLoopback() bool {
	host, _, err := net.SplitHostPort(c.Addr)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}

// listenAddr checks where to listen. Without a host it is loopback: to be reached from elsewhere is asked for by name.
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

// validate reports contradictions between variables.
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
	return errors.Join(wrong...)
}

// Options returns the options of the API. It reads the file of tokens or keys, whose later changes are noticed. Its error names the variable.
func (c Config) Options() (api.Options, error) {
	proxies, err := api.TrustedProxies(c.vars.TrustedProxies)
	o := api.Options{TrustedProxies: proxies}
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
		// The headers come from a loopback address then, and so would those of a web page that points its name there.
		o.Authenticate, o.LoopbackOnly, o.Hosts = proxies.Authenticate, c.OnLoopback(), c.vars.Hosts
	case "none":
		o.InsecureAllowAll, o.LoopbackOnly = true, true
	default:
		return o, fmt.Errorf("TRAPEZE_AUTH=%q: want token, jwt, header or none", c.Auth)
	}
	return o, nil
}

// Warnings lists settings that are allowed and may be a mistake: each is a line for the log of the program that serves the API.
func (c Config) Warnings() (list []string) {
	if c.Auth == "none" {
		list = append(list, "no authentication: every request from this machine has all permissions; set TRAPEZE_TOKENS_FILE or TRAPEZE_AUTH")
	} else if c.vars.TLSCert == "" && len(c.vars.TrustedProxies) == 0 && !c.OnLoopback() {
		list = append(list, "tokens cross the network unencrypted: set TRAPEZE_TLS_CERT, or TRAPEZE_TRUSTED_PROXIES if a proxy terminates TLS")
	}
	return list
}
