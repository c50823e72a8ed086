package access

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Masked is what is shown in the place of a secret, as JSON.
const Masked = `"***"`

// Mask hides secrets in JSON. The zero value hides nothing.
type Mask struct {
	paths  [][]string
	all    bool
	strict bool
}

// MaskAll hides every value and shows the names of members alone: for what nobody here knows the secrets of.
var MaskAll = Mask{all: true}

// Strict returns a mask that also hides a value that has another shape than its pointers expect: text where an object with a secret
// should be, or a list of them. It is for arguments, whose shape the pointers describe; a result has any shape.
func (m Mask) Strict() Mask {
	m.strict = true
	return m
}

// MaskOf makes a mask of JSON pointers (RFC 6901), in which * stands for every member and every element. Names of members are found
// whatever their case, as encoding/json does when it decodes.
func MaskOf(pointers ...string) (Mask, error) {
	var m Mask
	for _, pointer := range pointers {
		steps := strings.Split(pointer, "/")
		if len(steps) < 2 || steps[0] != "" {
			return m, fmt.Errorf("secret %q: want a JSON pointer, such as /password or /users/*/password", pointer)
		}
		for i, step := range steps {
			steps[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(step)
		}
		m.paths = append(m.paths, steps[1:])
	}
	return m, nil
}

// JSON returns raw with its secrets hidden; what cannot be read is hidden whole. Without secrets to hide it is raw itself.
func (m Mask) JSON(raw json.RawMessage) json.RawMessage {
	shown, _ := m.Hide(raw)
	return shown
}

// Hide is JSON, and reports whether there was a secret to hide.
func (m Mask) Hide(raw json.RawMessage) (shown json.RawMessage, hid bool) {
	if len(raw) == 0 || len(m.paths) == 0 && !m.all {
		return raw, false
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var out masked
	if err := m.value(d, &out, m.paths); err != nil {
		return json.RawMessage(Masked), true
	}
	return out.text.Bytes(), out.hid
}

// masked is what a mask lets through.
type masked struct {
	text bytes.Buffer
	hid  bool // something was hidden
}

func (out *masked) hide() {
	out.hid = true
	out.text.WriteString(Masked)
}

// value copies one value; paths lead from it to the secrets in it.
func (m Mask) value(d *json.Decoder, out *masked, paths [][]string) error {
	if !m.all && len(paths) == 0 { // nothing below is secret
		var raw json.RawMessage
		err := d.Decode(&raw)
		out.text.Write(raw)
		return err
	}
	token, err := d.Token()
	if err != nil {
		return err
	}
	switch token {
	case json.Delim('{'):
		err = m.members(d, out, paths)
	case json.Delim('['):
		err = m.elements(d, out, paths)
	default:
		if (m.all || m.strict) && token != nil {
			out.hide()
			return nil
		}
		return write(out, token)
	}
	if err == nil {
		_, err = d.Token() // its end
	}
	return err
}

func (m Mask) members(d *json.Decoder, out *masked, paths [][]string) error {
	out.text.WriteByte('{')
	for first := true; d.More(); first = false {
		name, err := d.Token()
		if err != nil {
			return err
		}
		if !first {
			out.text.WriteByte(',')
		}
		if err := write(out, name); err != nil {
			return err
		}
		out.text.WriteByte(':')
		if err := m.below(d, out, paths, name.(string)); err != nil {
			return err
		}
	}
	out.text.WriteByte('}')
	return nil
}

func (m Mask) elements(d *json.Decoder, out *masked, paths [][]string) error {
	out.text.WriteByte('[')
	for i := 0; d.More(); i++ {
		if i > 0 {
			out.text.WriteByte(',')
		}
		if m.strict && slices.ContainsFunc(paths, ofMember) {
			var hidden json.RawMessage
			out.hide()
			if err := d.Decode(&hidden); err != nil {
				return err
			}
			continue
		}
		if err := m.below(d, out, paths, fmt.Sprint(i)); err != nil {
			return err
		}
	}
	out.text.WriteByte(']')
	return nil
}

// ofMember reports whether a pointer leads on to a member of an object, which no list has.
func ofMember(path []string) bool {
	_, err := strconv.Atoi(path[0])
	return err != nil && path[0] != "*"
}

// below copies the value of a member or element, or hides it.
func (m Mask) below(d *json.Decoder, out *masked, paths [][]string, name string) error {
	var rest [][]string
	for _, path := range paths {
		if path[0] != "*" && !strings.EqualFold(path[0], name) {
			continue
		}
		if len(path) == 1 {
			var hidden json.RawMessage
			out.hide()
			return d.Decode(&hidden)
		}
		rest = append(rest, path[1:])
	}
	return m.value(d, out, rest)
}

// write writes a name or a scalar.
func write(out *masked, token json.Token) error {
	encoder := json.NewEncoder(&out.text)
	encoder.SetEscapeHTML(false) // what is shown is shown as it is
	err := encoder.Encode(token)
	out.text.Truncate(len(bytes.TrimSuffix(out.text.Bytes(), []byte("\n"))))
	return err
}
