// Package access authenticates the sender of a request and decides what it may do: tokens, signed tokens, client certificates, proxies and
// browser sessions; principals, roles and permissions. It also masks secrets in JSON for principals that may not see them ([Mask]). It
// hides the files, which are read again when they change. It knows no route and no database: packages api and api/ui call it.
package access
