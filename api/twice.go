package api

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

// twice finds a member that an object of valid JSON names twice, as a JSON pointer; found is false when there is none. Of two, readers
// take the first, the last or both, so what one has checked another does not do. Members of ours are the same in upper and lower case, as
// encoding/json takes them; in arguments and results, which are the handlers' own, only what is the same to the letter.
func twice(raw []byte) (pointer string, found bool) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return twiceIn(d, true)
}

func twiceIn(d *json.Decoder, ours bool) (pointer string, found bool) {
	token, err := d.Token()
	if err != nil {
		return "", false
	}
	switch token {
	case json.Delim('{'):
		names := map[string]bool{}
		for d.More() {
			token, err := d.Token()
			name, ok := token.(string)
			if err != nil || !ok {
				return "", false
			}
			folded := strings.ToLower(strings.ToUpper(name))
			key := name
			if ours {
				key = folded
			}
			if names[key] {
				return "/" + name, true
			}
			names[key] = true
			if below, found := twiceIn(d, ours && folded != "args" && folded != "result"); found {
				return "/" + name + below, true
			}
		}
	case json.Delim('['):
		for i := 0; d.More(); i++ {
			if below, found := twiceIn(d, ours); found {
				return "/" + strconv.Itoa(i) + below, true
			}
		}
	default:
		return "", false
	}
	_, _ = d.Token() // its end
	return "", false
}
