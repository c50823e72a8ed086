package text

import "fmt"

// Wrap adds what failed to an error, such as "read job 7". It returns nil for a nil error.
func Wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}
