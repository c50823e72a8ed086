package routine_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/routine"
)

type (
	node      struct{ next *node }
	wrapsSelf struct{}
	joinsSelf struct{}
	bad       string
	wraps     struct{ error }
	list      []any
)

func (*wrapsSelf) Error() string     { return "self" }
func (w *wrapsSelf) Unwrap() error   { return w }
func (j *joinsSelf) Error() string   { return j.Unwrap()[0].Error() }
func (j *joinsSelf) Unwrap() []error { return []error{j} }
func (w wraps) Unwrap() error        { return w.error }
func (b bad) String() string {
	if b == "panics" {
		panic("again")
	}
	return strings.Repeat("x", 8<<20)
}

func TestCyclicPanicText(t *testing.T) {
	t.Parallel()
	cyclicMap, cyclicList := map[string]any{}, make(list, 2)
	cyclicMap["self"], cyclicList[0], cyclicList[1] = cyclicMap, cyclicList, cyclicList
	ring := &node{}
	ring.next = ring
	for name, c := range map[string]struct {
		value any
		says  string
	}{
		"a map in itself":         {cyclicMap, "a value of type map[string]interface {}"},
		"a list in itself":        {cyclicList, "a value of type routine_test.list"},
		"a pointer to itself":     {ring, "a value of type *routine_test.node"},
		"an error in itself":      {&wrapsSelf{}, "wraps itself: *routine_test.wrapsSelf"},
		"an error joining itself": {&joinsSelf{}, "wraps itself: *routine_test.joinsSelf"},
		"a method that panics":    {bad("panics"), "PANIC=String method: again"},
		"megabytes":               {bad("megabytes"), "xxx"},
		"a nil error":             {(*wraps)(nil), "whose methods panic"},
		"an error":                {errors.New("no"), "no"},
		"a number":                {7.5, "7.5"},
		"nil":                     {nil, "panic called with nil argument"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			p, ok := errors.AsType[*routine.Panic](routine.Call(func() error { panic(c.value) }))
			is.True(ok)
			is.True(strings.Contains(p.Value, c.says))
			is.True(len(p.Value) <= 4<<10+len("..."))
		})
	}
}
