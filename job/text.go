package job

import "bytes"

// HoldsNUL reports whether JSON text holds an escaped NUL character, which no text in PostgreSQL can: \u0000 whose
// backslash is not escaped itself.
func HoldsNUL(raw []byte) bool {
	for i := 0; i+1 < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		if bytes.HasPrefix(raw[i:], []byte(`\u0000`)) {
			return true
		}
		i++ // whatever was escaped
	}
	return false
}
