package guard

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// These limits apply to the text of a panic's value.
const (
	maxText     = 4 << 10     // bytes
	maxDepth    = 5           // nesting of values
	textTimeout = time.Second // for an Error or String method
)

// describe returns a short text for the value of a panic. Unlike [fmt.Sprint], it accepts a value that contains itself, whose text would
// never end, and methods that panic, block or return megabytes.
func describe(v any) string {
	d := &describer{}
	d.write(reflect.ValueOf(v), 0)
	if text := d.text.String(); len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(d.text.String()[:maxText], "") + "…"
}

// maxWrapped is the maximum number of errors that an error may wrap, directly and indirectly.
const maxWrapped = 10_000

// Endless reports whether an error wraps itself, or too many other errors. [errors.Is] and [errors.As] would not return for it.
func Endless(err error) bool {
	left := maxWrapped
	return endless(err, &left)
}

func endless(err error, left *int) bool {
	for err != nil {
		if *left--; *left < 0 {
			return true
		}
		switch is := err.(type) {
		case interface{ Unwrap() error }:
			err = is.Unwrap()
		case interface{ Unwrap() []error }:
			for _, one := range is.Unwrap() {
				if endless(one, left) {
					return true
				}
			}
			return false
		default:
			return false
		}
	}
	return false
}

type describer struct{ text strings.Builder }

// write appends the text of a value, in the format of [fmt.Sprint].
func (d *describer) write(v reflect.Value, depth int) {
	switch {
	case d.text.Len() > maxText:
		return
	case !v.IsValid():
		d.text.WriteString("<nil>")
		return
	case depth > maxDepth:
		d.text.WriteString("…")
		return
	}
	if text, ok := methodText(v); ok {
		d.text.WriteString(text)
		return
	}
	switch v.Kind() {
	case reflect.Interface:
		d.write(v.Elem(), depth)
	case reflect.Pointer:
		if v.IsNil() || depth > 0 {
			fmt.Fprintf(&d.text, "%#x", v.Pointer())
			return
		}
		d.text.WriteByte('&')
		d.write(v.Elem(), depth+1)
	case reflect.Map:
		d.text.WriteString("map[")
		for i, entries := 0, v.MapRange(); d.text.Len() <= maxText && entries.Next(); i++ {
			d.space(i)
			d.write(entries.Key(), depth+1)
			d.text.WriteByte(':')
			d.write(entries.Value(), depth+1)
		}
		d.text.WriteByte(']')
	case reflect.Slice, reflect.Array:
		d.text.WriteByte('[')
		for i := 0; i < v.Len() && d.text.Len() <= maxText; i++ {
			d.space(i)
			d.write(v.Index(i), depth+1)
		}
		d.text.WriteByte(']')
	case reflect.Struct:
		d.text.WriteByte('{')
		for i := range v.NumField() {
			d.space(i)
			d.write(v.Field(i), depth+1)
		}
		d.text.WriteByte('}')
	case reflect.String:
		text := v.String()
		d.text.WriteString(text[:min(len(text), maxText+1)])
	case reflect.Chan, reflect.Func, reflect.UnsafePointer:
		d.text.WriteString(v.Type().String() + "(" + strconv.FormatUint(uint64(v.Pointer()), 16) + ")")
	default: // a boolean or a number, which has no method
		fmt.Fprint(&d.text, v)
	}
}

func (d *describer) space(i int) {
	if i > 0 {
		d.text.WriteByte(' ')
	}
}

// methodText returns the text of a value's Error or String method. It calls the method on another goroutine, because the method may block.
func methodText(v reflect.Value) (text string, ok bool) {
	if !v.CanInterface() {
		return "", false
	}
	if v.Kind() == reflect.Pointer && v.IsNil() {
		return "<nil>", true
	}
	var method func() string
	switch is := v.Interface().(type) {
	case error:
		if Endless(is) {
			return "an error that wraps itself: " + v.Type().String(), true
		}
		method = is.Error
	case fmt.Stringer:
		method = is.String
	default:
		return "", false
	}
	done := make(chan string, 1)
	go func() {
		result := "exited its goroutine"
		defer func() {
			if recover() != nil {
				result = "panicked"
			}
			done <- result
		}()
		result = ""
		result = method()
	}()
	timeout := time.NewTimer(textTimeout)
	defer timeout.Stop()
	select {
	case text := <-done:
		return text[:min(len(text), maxText+1)], true
	case <-timeout.C:
		return "(the text of a " + v.Type().String() + " was not ready after " + textTimeout.String() + ")", true
	}
}
