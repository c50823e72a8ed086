package routine

import (
	"fmt"
	"reflect"
	"strings"
)

// maxText is the maximum length of the text of a panic's value, in bytes.
const maxText = 4 << 10

// describe returns a short text for the value of a panic. Like Go's own report of a panic, it gives only the type of a value that is neither
// basic nor an error nor a [fmt.Stringer]: the text of a map or a slice that contains itself would never end.
func describe(v any) (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("a value of type %T, whose methods panic", v)
		}
	}()
	switch is := v.(type) {
	case error:
		if Endless(is) {
			return fmt.Sprintf("an error that wraps itself: %T", v)
		}
	case fmt.Stringer:
	default:
		if kind := reflect.ValueOf(v).Kind(); kind > reflect.Complex128 && kind != reflect.String {
			return fmt.Sprintf("a value of type %T", v)
		}
	}
	text = fmt.Sprint(v)
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "..."
	}
	return text
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
			for _, failed := range is.Unwrap() {
				if endless(failed, left) {
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
