package runner

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"github.com/trapeze-run/trapeze/internal/text"
)

// secretsOf returns a type's fields that are marked secret. known is false for a type with a custom JSON encoding.
func secretsOf(t reflect.Type) (pointers []string, known bool) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || opaque(t) {
		return nil, false
	}
	var s secretWalk
	s.walk(t, "", nil, false)
	if len(s.found) > 0 {
		s.found = append(s.found, s.again...)
	}
	return s.found, true
}

// opaque reports whether a type has a custom JSON encoding, which might not match its fields. Times and [json.RawMessage] are not opaque,
// because they have no fields that could be marked secret.
func opaque(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct, reflect.Slice, reflect.Array, reflect.Map:
	default:
		return false
	}
	return t != reflect.TypeFor[json.RawMessage]() && text.CustomJSON(t)
}

// marked reports whether any field within a type is marked secret, even if encoding/json omits the field.
func marked(t reflect.Type, within []reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return marked(t.Elem(), within)
	case reflect.Struct:
		if slices.Contains(within, t) {
			return false
		}
		within = append(slices.Clone(within), t)
		for field := range t.Fields() {
			if field.Tag.Get("secret") == "true" || marked(field.Type, within) {
				return true
			}
		}
	}
	return false
}

// secretWalk collects pointers to secret fields in found. In again, it collects the positions that it cannot examine: recursive structs and
// types with a custom encoding. If any field is secret, these positions are hidden entirely.
type secretWalk struct{ found, again []string }

// walk examines a value of type t at a position. The within argument lists the enclosing structs. If hidden is true, all fields of t are
// secret.
func (s *secretWalk) walk(t reflect.Type, at string, within []reflect.Type, hidden bool) {
	switch {
	case !opaque(t):
	case marked(t, nil):
		s.found = append(s.found, at)
		return
	default:
		s.again = append(s.again, at)
		return
	}
	switch t.Kind() {
	case reflect.Pointer:
		s.walk(t.Elem(), at, within, hidden)
	case reflect.Slice, reflect.Array, reflect.Map:
		s.walk(t.Elem(), at+"/*", within, hidden)
	case reflect.Struct:
		s.fields(t, at, within, hidden)
	}
}

func (s *secretWalk) fields(t reflect.Type, at string, within []reflect.Type, hidden bool) {
	if slices.Contains(within, t) {
		s.again = append(s.again, at)
		return
	}
	within = append(slices.Clone(within), t)
	for field := range t.Fields() {
		s.field(field, at, within, hidden)
	}
}

func (s *secretWalk) field(f reflect.StructField, at string, within []reflect.Type, hidden bool) {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	hidden = hidden || f.Tag.Get("secret") == "true"
	switch {
	case f.Tag.Get("json") == "-" || !f.IsExported() && !f.Anonymous:
		return
	case f.Anonymous && name == "" && target(f.Type).Kind() == reflect.Struct: // its fields belong to the enclosing struct, regardless of its own encoding
		s.fields(target(f.Type), at, within, hidden)
		return
	case name == "":
		name = f.Name
	}
	below := at + "/" + escapePointer.Replace(name)
	if hidden {
		s.found = append(s.found, below)
		return
	}
	s.walk(f.Type, below, within, false)
}

// target returns the type that a pointer points to, or t itself.
func target(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

var escapePointer = strings.NewReplacer("~", "~0", "/", "~1")
