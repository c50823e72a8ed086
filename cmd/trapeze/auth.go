package main

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/trapeze-run/trapeze/api"
)

// openOnLoopback is what TRAPEZE_AUTH means when neither it nor a tokens file is given and the address is a loopback one: none, so that
// the first start needs no settings. Everywhere else the default is token, which needs its file.
func (c *config) openOnLoopback() {
	if os.Getenv("TRAPEZE_AUTH") == "" && c.TokensFile == "" && c.onLoopback() {
		c.Auth = "none"
	}
}

// onLoopback reports whether the address to listen on is one of this machine alone.
func (c *config) onLoopback() bool {
	addr, err := listenAddr(c.HTTPAddr)
	if err != nil {
		return false
	}
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}

// validateAuth reports what is missing or contradicts itself in the variables about permissions and TLS.
func (c *config) validateAuth() (errs []error) {
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
		complain(c.onLoopback(), "TRAPEZE_AUTH=none lets everybody do everything: it needs a loopback address, not TRAPEZE_HTTP_ADDR=%q", c.HTTPAddr)
	default:
		complain(false, "TRAPEZE_AUTH=%q: want token, jwt, header or none", c.Auth)
	}
	_, err := api.TrustedProxies(c.TrustedProxies)
	complain(err == nil, "TRAPEZE_TRUSTED_PROXIES: %w", err)
	complain((c.TLSCert == "") == (c.TLSKey == ""), "TRAPEZE_TLS_CERT and TRAPEZE_TLS_KEY: want both or neither")
	complain(c.TLSClientCA == "" || c.TLSCert != "", "TRAPEZE_TLS_CLIENT_CA: it needs TRAPEZE_TLS_CERT")
	return errs
}

// door says who may use this pod's API.
func (s *serving) door() (api.Options, error) {
	proxies, err := api.TrustedProxies(s.config.TrustedProxies)
	o := api.Options{TrustedProxies: proxies}
	if err != nil {
		return o, usage("TRAPEZE_TRUSTED_PROXIES: %w", err)
	}
	switch s.config.Auth {
	case "token":
		tokens, err := api.TokenFile(s.config.TokensFile)
		if err != nil {
			return o, usage("TRAPEZE_TOKENS_FILE: %w", err)
		}
		o.Authenticate, o.Login = tokens.Authenticate, tokens.Login
	case "jwt":
		signed, err := api.KeysFile(s.config.JWTKeysFile)
		if err != nil {
			return o, usage("TRAPEZE_JWT_KEYS_FILE: %w", err)
		}
		o.Authenticate, o.Login = signed.Authenticate, signed.Login
	case "header":
		// The headers come from a loopback address then, and so would those of a web page that points its name there.
		o.Authenticate, o.LoopbackOnly, o.Hosts = proxies.Authenticate, s.config.onLoopback(), s.config.Hosts
	case "none":
		o.InsecureAllowAll, o.LoopbackOnly = true, true
		s.log.Warn("no permissions: everybody on this machine may do everything; set TRAPEZE_TOKENS_FILE, or TRAPEZE_AUTH", "auth", "none")
	default:
		return o, usage("TRAPEZE_AUTH: %w", errors.ErrUnsupported)
	}
	return o, nil
}
