package text

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Shape lists the members that a type declares. A nil Shape belongs to a type that may have any content, such as an interface or a type
// with a custom JSON encoding. A Shape may contain itself.
type Shape struct {
	members  map[string]*Shape // of a struct
	elements *Shape            // of a list
	values   *Shape            // of a map
	list     bool
	dict     bool
}

// ShapeOf returns the shape of t.
func ShapeOf(t reflect.Type) *Shape { return of(t, map[reflect.Type]*Shape{}) }

// of is like Of, with the shapes of the enclosing types, which may be incomplete.
func of(t reflect.Type, seen map[reflect.Type]*Shape) *Shape {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch s, ok := seen[t]; {
	case ok:
		return s
	case t.Kind() == reflect.Interface || CustomJSON(t):
		return nil
	}
	s := &Shape{}
	seen[t] = s
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		s.list, s.elements = true, of(t.Elem(), seen)
	case reflect.Map:
		s.dict, s.values = true, of(t.Elem(), seen)
	case reflect.Struct:
		s.members = map[string]*Shape{}
		s.fields(t, seen, nil)
	}
	return s
}

// fields adds the fields of a struct and of the structs embedded in it. within lists the enclosing structs.
func (s *Shape) fields(t reflect.Type, seen map[reflect.Type]*Shape, within []reflect.Type) {
	if slices.Contains(within, t) {
		return
	}
	within = append(slices.Clone(within), t)
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		embedded := f.Type
		if embedded.Kind() == reflect.Pointer {
			embedded = embedded.Elem()
		}
		switch {
		case f.Tag.Get("json") == "-" || !f.IsExported() && !f.Anonymous:
		case f.Anonymous && name == "" && embedded.Kind() == reflect.Struct:
			s.fields(embedded, seen, within)
		case name == "":
			s.members[f.Name] = of(f.Type, seen)
		default:
			s.members[name] = of(f.Type, seen)
		}
	}
}

// CustomJSON reports whether t has a custom JSON encoding, which might not match its fields. Times are encoded as strings, so they do not count.
func CustomJSON(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return t != reflect.TypeFor[time.Time]() && (p.Implements(reflect.TypeFor[json.Marshaler]()) || p.Implements(reflect.TypeFor[json.Unmarshaler]()))
}

// Member returns the shape of an object's member. declared is false if the type has no such member. Names match case-insensitively, as in
// encoding/json.
func (s *Shape) Member(name string) (member *Shape, declared bool) {
	if s == nil {
		return nil, true
	}
	if s.dict {
		return s.values, true
	}
	if member, declared = s.members[name]; declared {
		return member, true
	}
	for one, shape := range s.members {
		if strings.EqualFold(one, name) {
			return shape, true
		}
	}
	return nil, false
}

// Element returns the shape of a list's elements. declared is false if the type is no list.
func (s *Shape) Element() (element *Shape, declared bool) {
	if s == nil {
		return nil, true
	}
	return s.elements, s.list
}
