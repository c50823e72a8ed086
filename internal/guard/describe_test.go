package guard_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/guard"
)

type (
	node      struct{ next *node }
	wrapsSelf struct{}
	joinsSelf struct{}
	bad       string
	list      []any
)

func (*wrapsSelf) Error() string     { return "self" }
func (w *wrapsSelf) Unwrap() error   { return w }
func (j *joinsSelf) Error() string   { return j.Unwrap()[0].Error() }
func (j *joinsSelf) Unwrap() []error { return []error{j} }
func (b bad) String() string {
	switch b {
	case "panics":
		panic(b)
	case "blocks":
		time.Sleep(time.Minute)
	}
	return strings.Repeat("x", 8<<20)
}

func TestTheTextOfAnyPanicIsShort(t *testing.T) {
	t.Parallel()
	cyclicMap, cyclicList, wide := map[string]any{}, make(list, 2), make(list, 100)
	cyclicMap["self"], cyclicList[0], cyclicList[1] = cyclicMap, cyclicList, cyclicList
	for i := range wide {
		wide[i] = wide
	}
	ring := &node{}
	ring.next = ring
	for name, c := range map[string]struct {
		value any
		says  string
	}{
		"a map in itself":         {cyclicMap, "map[self:map[self:"},
		"a list in itself":        {cyclicList, "[[["},
		"a wide list in itself":   {wide, "[[["},
		"a pointer to itself":     {ring, "&{0x"},
		"an error in itself":      {&wrapsSelf{}, "wraps itself: *guard_test.wrapsSelf"},
		"an error joining itself": {&joinsSelf{}, "wraps itself: *guard_test.joinsSelf"},
		"a method that panics":    {bad("panics"), "panicked"},
		"a method that blocks":    {bad("blocks"), "not ready after 1s"},
		"megabytes":               {bad("megabytes"), "xxx"},
		"megabytes inside":        {list{strings.Repeat("x", 8<<20)}, "[xxx"},
		"a nil error":             {(*wrapsSelf)(nil), "<nil>"},
		"an error":                {errors.New("no"), "no"},
		"a struct":                {struct{ N, m any }{1, []string{"a", "b"}}, "{1 [a b]}"},
		"nil":                     {nil, "panic called with nil argument"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			p, ok := errors.AsType[*guard.Panic](guard.Call(func() error { panic(c.value) }))
			is.True(ok)
			is.True(strings.Contains(p.Value, c.says))
			is.True(len(p.Value) <= 4<<10+len("…"))
		})
	}
}
