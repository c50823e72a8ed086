package runner

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/matryer/is"
)

type inner struct {
	Key  string `secret:"true"`
	Name string
}

type tree struct {
	Children []tree `json:"children"`
	Auth     inner  `json:"auth"`
}

type list struct {
	Next *list
	Name string
}

type (
	Token  string
	Users  []inner
	First  struct{ inner }
	Second struct{ Name string }
	hides  struct {
		key string `secret:"true"`
	}
	plainly struct{ Text string }
)

func (*First) UnmarshalJSON([]byte) error   { return nil }
func (*Second) UnmarshalJSON([]byte) error  { return nil }
func (h *hides) UnmarshalJSON([]byte) error { h.key = ""; return nil }
func (*plainly) UnmarshalJSON([]byte) error { return nil }

func TestSecretsByArgumentType(t *testing.T) {
	for _, c := range []struct {
		name  string
		v     any
		want  []string
		known bool
	}{
		{"a field", struct {
			Password string `json:"password" secret:"true"`
			User     string
		}{}, []string{"/password"}, true},
		{"below", struct{ Auth inner }{}, []string{"/Auth/Key"}, true},
		{"behind a pointer, in lists and maps", struct {
			P *inner
			L []inner
			M map[string]*inner
		}{}, []string{"/P/Key", "/L/*/Key", "/M/*/Key"}, true},
		{"embedded", struct{ inner }{}, []string{"/Key"}, true},
		{"embedded and secret whole", struct {
			inner `secret:"true"`
		}{}, []string{"/Key", "/Name"}, true},
		{"embedded under a name", struct {
			inner `json:"in" secret:"true"`
		}{}, []string{"/in"}, true},
		{"not in JSON", struct {
			A string `json:"-" secret:"true"`
			b string `secret:"true"`
		}{b: ""}, nil, true},
		{"a name with a slash", struct {
			A string `json:"a/b" secret:"true"`
		}{}, []string{"/a~1b"}, true},
		{"holds itself", tree{}, []string{"/auth/Key", "/children/*"}, true},
		{"holds itself and has no secret", list{}, nil, true},
		{"a time", struct{ At time.Time }{}, nil, true},
		{"JSON of its own", Raw{}, nil, false},
		{"embedded text", struct {
			Token `secret:"true"`
		}{}, []string{"/Token"}, true},
		{"an embedded list", struct{ Users }{}, []string{"/Users/*/Key"}, true},
		{"embedded with JSON of its own that is not used", struct {
			First
			Second
		}{}, []string{"/Key"}, true},
		{"a member with JSON of its own and a secret", struct{ In First }{}, []string{"/In"}, true},
		{"a member with JSON of its own and a secret in a field that is not exported", struct{ In *hides }{}, []string{"/In"}, true},
		{"a member with JSON of its own beside a secret", struct {
			Key string `secret:"true"`
			In  plainly
			All map[string]plainly
		}{}, []string{"/All/*", "/In", "/Key"}, true},
		{"a member with JSON of its own and no secret anywhere", struct{ In plainly }{}, nil, true},
		{"a moment and raw JSON beside a secret", struct {
			Key string `secret:"true"`
			At  time.Time
			Raw json.RawMessage
		}{}, []string{"/Key"}, true},
		{"no struct", json.RawMessage{}, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			got, known := secretsOf(reflect.TypeOf(c.v))
			slices.Sort(got)
			slices.Sort(c.want)
			is.Equal(got, c.want)
			is.Equal(known, c.known)
		})
	}
}
