package access

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/trapeze-run/trapeze/internal/text"
)

// Masked is the JSON that replaces a secret.
const Masked = `"***"`

// Mask hides secrets in JSON. The zero Mask hides nothing.
type Mask struct {
	paths  [][]string
	all    bool
	strict bool
	known  *text.Shape // declared members; nil if all are
}

// MaskAll hides every value except null, but shows member names. It is for kinds whose secrets are unknown.
var MaskAll = Mask{all: true}

// Strict returns a mask that also hides values that do not have the shape described by the pointers, such as a string where the pointers
// expect an object with a secret. It hides members that known does not declare: a newer release may have declared them as secret. It is
// meant for arguments, whose shape is known; results may have any shape.
func (m Mask) Strict(known *text.Shape) Mask {
	m.strict, m.known = true, known
	return m
}

// MaskOf returns a mask for JSON pointers (RFC 6901) in which * matches any member or element. Member names match case-insensitively, as in
// encoding/json.
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

// JSON returns raw with its secrets hidden. If raw cannot be parsed, JSON hides all of it. An empty mask returns raw unchanged. Any other
// mask may change the white space and escapes.
func (m Mask) JSON(raw json.RawMessage) json.RawMessage {
	shown, _ := m.Hide(raw)
	return shown
}

// Hide is like JSON, and also reports whether it hid anything.
func (m Mask) Hide(raw json.RawMessage) (shown json.RawMessage, hid bool) {
	if len(raw) == 0 || len(m.paths) == 0 && !m.all && m.known == nil {
		return raw, false
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var out maskOutput
	if err := m.value(d, &out, m.paths, m.known); err != nil {
		return json.RawMessage(Masked), true
	}
	return out.text.Bytes(), out.hid
}

// maskOutput collects the masked JSON.
type maskOutput struct {
	text bytes.Buffer
	hid  bool // whether anything was hidden
}

func (out *maskOutput) hide() {
	out.hid = true
	out.text.WriteString(Masked)
}

// value copies one value and masks the secrets in it. paths holds the remaining steps of each pointer, relative to this value, and known its
// declared members.
func (m Mask) value(d *json.Decoder, out *maskOutput, paths [][]string, known *text.Shape) error {
	if !m.all && len(paths) == 0 && known == nil { // nothing in this value is secret
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
		err = m.members(d, out, paths, known)
	case json.Delim('['):
		err = m.elements(d, out, paths, known)
	default:
		if (m.all || m.strict && len(paths) > 0) && token != nil {
			out.hide()
			return nil
		}
		return write(out, token)
	}
	if err == nil {
		_, err = d.Token() // the closing delimiter
	}
	return err
}

func (m Mask) members(d *json.Decoder, out *maskOutput, paths [][]string, known *text.Shape) error {
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
		member, declared := known.Member(name.(string))
		if err := m.below(d, out, paths, name.(string), member, declared); err != nil {
			return err
		}
	}
	out.text.WriteByte('}')
	return nil
}

func (m Mask) elements(d *json.Decoder, out *maskOutput, paths [][]string, known *text.Shape) error {
	element, declared := known.Element()
	out.text.WriteByte('[')
	for i := 0; d.More(); i++ {
		if i > 0 {
			out.text.WriteByte(',')
		}
		expected := declared && !(m.strict && slices.ContainsFunc(paths, ofMember))
		if err := m.below(d, out, paths, fmt.Sprint(i), element, expected); err != nil {
			return err
		}
	}
	out.text.WriteByte(']')
	return nil
}

// ofMember reports whether the next step of a pointer refers to a member of an object rather than an element of a list.
func ofMember(path []string) bool {
	_, err := strconv.Atoi(path[0])
	return err != nil && path[0] != "*"
}

// below copies or hides the value of an object member or a list element. It hides a value that is not declared.
func (m Mask) below(d *json.Decoder, out *maskOutput, paths [][]string, name string, known *text.Shape, declared bool) error {
	var rest [][]string
	for _, path := range paths {
		if path[0] != "*" && !strings.EqualFold(path[0], name) {
			continue
		}
		declared = declared && len(path) > 1
		rest = append(rest, path[1:])
	}
	if !declared {
		var hidden json.RawMessage
		out.hide()
		return d.Decode(&hidden)
	}
	return m.value(d, out, rest, known)
}

// write writes a member name or a scalar.
func write(out *maskOutput, token json.Token) error {
	encoder := json.NewEncoder(&out.text)
	encoder.SetEscapeHTML(false) // keep <, > and & as they are in the input
	err := encoder.Encode(token)
	out.text.Truncate(len(bytes.TrimSuffix(out.text.Bytes(), []byte("\n"))))
	return err
}
