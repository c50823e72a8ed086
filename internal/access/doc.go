// Package access authenticates the sender of a request and decides which operations the sender may perform. It supports tokens, signed
// tokens, client certificates, trusted proxies and browser sessions, and defines principals, roles and permissions. It also masks secrets
// in JSON for principals that may not see them (see [Mask]). Its files are reread when they change. The package depends on neither routes
// nor the database; packages api and api/ui use it.
package access
