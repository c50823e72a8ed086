package access

import (
	"errors"
	"net/http"
	"testing"

	"github.com/matryer/is"
)

func from(addr string, header ...string) *http.Request {
	r := asking(header...)
	r.RemoteAddr = addr
	return r
}

func TestTrustedProxyIdentity(t *testing.T) {
	is := is.New(t)
	proxies, err := ParseProxies([]string{"10.1.0.0/16", "192.0.2.7", "fd00::/8"})
	is.NoErr(err)
	for _, peer := range []string{"10.1.2.3:40000", "192.0.2.7:1", "[fd00::1]:443", "[::ffff:10.1.2.3]:443"} {
		p, err := proxies.Authenticate(from(peer, UserHeader, "ana", GroupsHeader, "viewer, operator", GroupsHeader, "worker"))
		is.NoErr(err)
		is.Equal(p.Name, "ana")
		is.Equal(p.Roles, []string{"viewer", "operator", "worker"})
	}
	for name, r := range map[string]*http.Request{
		"another block":         from("10.2.0.1:40000", UserHeader, "ana"),
		"its neighbour":         from("192.0.2.8:1", UserHeader, "ana"),
		"loopback":              from("127.0.0.1:1", UserHeader, "ana"),
		"a name of its own":     from("203.0.113.1:1", UserHeader, "ana", "X-Forwarded-For", "10.1.2.3"),
		"no user":               from("10.1.2.3:1"),
		"an empty user":         from("10.1.2.3:1", UserHeader, ""),
		"two users":             from("10.1.2.3:1", UserHeader, "ana", UserHeader, "root"),
		"no address":            from("@", UserHeader, "ana"),
		"not a proxy's address": from("pipe", UserHeader, "ana"),
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			_, err := proxies.Authenticate(r)
			is.True(errors.Is(err, ErrUnauthenticated))
		})
	}
	_, err = ParseProxies([]string{"everywhere"})
	is.True(err != nil)
}

func TestClientAddressBehindProxies(t *testing.T) {
	is := is.New(t)
	proxies, err := ParseProxies([]string{"10.1.0.0/16"})
	is.NoErr(err)
	is.Equal(proxies.Client(from("10.1.2.3:1", "X-Forwarded-For", "1.1.1.1, 203.0.113.9, 10.1.0.9")).String(), "203.0.113.9")
	is.Equal(proxies.Client(from("203.0.113.1:1", "X-Forwarded-For", "1.1.1.1")).String(), "203.0.113.1") // any client can send the header
	is.Equal(proxies.Client(from("10.1.2.3:1", "X-Forwarded-For", "rubbish")).String(), "10.1.2.3")
	is.Equal(proxies.Client(from("10.1.2.3:1")).String(), "10.1.2.3")
}
