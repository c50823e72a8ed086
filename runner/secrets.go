package runner

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
)

// Secrets says which of a kind's arguments are shown only to those who may see them, as JSON pointers in which * stands for every
// member and every element, such as /password or /users/*/token. It is beside the fields of the arguments' type with the tag
// `secret:"true"`. A kind of [HandleRaw] without it is shown with all its values hidden, because nobody knows which are secret; Secrets()
// says that none is.
func Secrets(pointers ...string) HandleOption {
	for _, pointer := range pointers {
		if !strings.HasPrefix(pointer, "/") {
			panic("runner: secret " + pointer + ": want a JSON pointer, such as /password or /users/*/token")
		}
	}
	return func(k *kind) {
		k.secrets, k.secretsKnown = append(k.secrets, pointers...), true
	}
}

// Secrets lists JSON pointers to what is secret in the arguments of a kind, see the option of this name. It is not known of kinds that
// have no handler here, and of those whose arguments have no type that says it.
func (r *Runner) Secrets(name string) (pointers []string, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.kinds[name]
	if k == nil {
		return nil, false
	}
	return slices.Clone(k.secrets), k.secretsKnown
}

// secretsOf finds the fields of a type that are marked secret. It is not known of a type that is JSON in a way of its own.
func secretsOf(t reflect.Type) (pointers []string, known bool) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || customJSON(t) {
		return nil, false
	}
	var s secretWalk
	s.walk(t, "", nil, false)
	if len(s.found) > 0 {
		s.found = append(s.found, s.again...)
	}
	return s.found, true
}

var (
	marshaler   = reflect.TypeFor[json.Marshaler]()
	unmarshaler = reflect.TypeFor[json.Unmarshaler]()
)

func customJSON(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(marshaler) || p.Implements(unmarshaler)
}

// secretWalk collects pointers to what is marked secret, and to where a struct holds itself: there no end is in sight, and if
// anything is secret, it is hidden whole.
type secretWalk struct{ found, again []string }

// walk looks at a value of type t at a place. within are the structs it is in; hidden: all its fields are secret.
func (s *secretWalk) walk(t reflect.Type, at string, within []reflect.Type, hidden bool) {
	switch t.Kind() {
	case reflect.Pointer:
		s.walk(t.Elem(), at, within, hidden)
	case reflect.Slice, reflect.Array, reflect.Map:
		s.walk(t.Elem(), at+"/*", within, hidden)
	case reflect.Struct:
		switch {
		case slices.Contains(within, t):
			s.again = append(s.again, at)
		case !customJSON(t):
			within = append(slices.Clone(within), t)
			for field := range t.Fields() {
				s.field(field, at, within, hidden)
			}
		}
	}
}

func (s *secretWalk) field(f reflect.StructField, at string, within []reflect.Type, hidden bool) {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	hidden = hidden || f.Tag.Get("secret") == "true"
	switch {
	case f.Tag.Get("json") == "-" || !f.IsExported() && !f.Anonymous:
		return
	case f.Anonymous && name == "": // its fields are those of the struct that it is in
		s.walk(f.Type, at, within, hidden)
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

var escapePointer = strings.NewReplacer("~", "~0", "/", "~1")
