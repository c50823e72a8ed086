package access

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// These are the headers in which a proxy sends the authenticated user and the user's roles. Roles are separated by commas.
const (
	UserHeader   = "X-Forwarded-User"
	GroupsHeader = "X-Forwarded-Groups"
)

// Proxies lists the addresses of trusted proxies.
type Proxies []netip.Prefix

// ParseProxies parses addresses and address blocks, such as 10.1.0.0/16.
func ParseProxies(list []string) (Proxies, error) {
	var proxies Proxies
	for _, text := range list {
		if !strings.Contains(text, "/") {
			if addr, err := netip.ParseAddr(text); err == nil {
				text = netip.PrefixFrom(addr, addr.BitLen()).String()
			}
		}
		block, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%q: want an IP address or a CIDR block such as 10.1.0.0/16", text)
		}
		proxies = append(proxies, block.Masked())
	}
	return proxies, nil
}

// Trusts reports whether an address belongs to a trusted proxy.
func (p Proxies) Trusts(addr netip.Addr) bool {
	for _, block := range p {
		if block.Contains(addr) {
			return true
		}
	}
	return false
}

// Authenticate returns a request's sender. It accepts the headers only from a trusted proxy.
func (p Proxies) Authenticate(r *http.Request) (Principal, error) {
	if from := Peer(r); !p.Trusts(from) {
		return Principal{}, fmt.Errorf("%w: %s is not a trusted proxy", ErrUnauthenticated, from)
	}
	users := r.Header.Values(UserHeader)
	if len(users) != 1 || users[0] == "" {
		return Principal{}, fmt.Errorf("%w: want one user name from the proxy in %s, got %.100q", ErrUnauthenticated, UserHeader, users)
	}
	who := Principal{Name: users[0]}
	for _, groups := range r.Header.Values(GroupsHeader) {
		for role := range strings.SplitSeq(groups, ",") {
			if role = strings.TrimSpace(role); role != "" {
				who.Roles = append(who.Roles, role)
			}
		}
	}
	return who, nil
}

// Client returns the address of the client that sent a request. If the peer is not a trusted proxy, that is the peer's address. Otherwise,
// it is the last address in X-Forwarded-For that does not belong to a trusted proxy.
func (p Proxies) Client(r *http.Request) netip.Addr {
	client := Peer(r)
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for len(hops) > 0 && p.Trusts(client) {
		before, err := netip.ParseAddr(strings.TrimSpace(hops[len(hops)-1]))
		if err != nil {
			break
		}
		client, hops = before.Unmap().WithZone(""), hops[:len(hops)-1]
	}
	return client
}

// Peer returns the remote address of a request's connection, or the zero address if it has none.
func Peer(r *http.Request) netip.Addr {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap().WithZone("")
}

// RequestURL returns the URL that a client requested, even behind an [http.StripPrefix].
func RequestURL(request *http.Request) *url.URL {
	if at, err := url.ParseRequestURI(request.RequestURI); err == nil {
		return at
	}
	return request.URL
}
