// Package access decides who may do what: permissions, the roles that bundle them, principals, and the ways in which a request
// says whose it is. It knows no route and no database: the API asks it.
package access
