package access

import (
	"cmp"
	"encoding/json"
	"math/big"
	"reflect"
	"testing"
	"time"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/text"
)

func TestSecretsMaskedByPointer(t *testing.T) {
	for name, c := range map[string]struct {
		pointers []string
		raw      string
		want     string
	}{
		"a member":                   {[]string{"/password"}, `{"user":"a","password":"p"}`, `{"user":"a","password":"***"}`},
		"any case":                   {[]string{"/password"}, `{"PassWord":"p"}`, `{"PassWord":"***"}`},
		"twice":                      {[]string{"/password"}, `{"password":"p","password":"q"}`, `{"password":"***","password":"***"}`},
		"whole":                      {[]string{"/auth"}, `{"auth":{"a":[1,{"b":2}]},"n":1}`, `{"auth":"***","n":1}`},
		"below":                      {[]string{"/auth/key"}, `{"auth":{"key":1,"id":2},"key":3}`, `{"auth":{"key":"***","id":2},"key":3}`},
		"in every element":           {[]string{"/users/*/key"}, `{"users":[{"key":1},{"id":2},3]}`, `{"users":[{"key":"***"},{"id":2},3]}`},
		"in one element":             {[]string{"/1"}, `[1,2,3]`, `[1,"***",3]`},
		"in every member":            {[]string{"/*/key"}, `{"a":{"key":1},"b":{"key":2}}`, `{"a":{"key":"***"},"b":{"key":"***"}}`},
		"two below one":              {[]string{"/a/b", "/a/c"}, `{"a":{"b":1,"c":2,"d":3}}`, `{"a":{"b":"***","c":"***","d":3}}`},
		"escaped":                    {[]string{"/a~1b~0c"}, `{"a/b~c":1}`, `{"a/b~c":"***"}`},
		"nowhere":                    {[]string{"/password"}, `{"n":1e400,"big":123456789012345678901234567890,"s":"<&>"}`, `{"n":1e400,"big":123456789012345678901234567890,"s":"<&>"}`},
		"something of another shape": {[]string{"/a/b"}, `{"a":"b"}`, `{"a":"b"}`},
		"what cannot be read":        {[]string{"/a"}, `{"a":`, `"***"`},
		"nothing":                    {[]string{"/a"}, ``, ``},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			m, err := MaskOf(c.pointers...)
			is.NoErr(err)
			is.Equal(string(m.JSON(json.RawMessage(c.raw))), c.want)
		})
	}
}

func TestStrictMaskOnUnexpectedShape(t *testing.T) {
	for _, c := range []struct{ pointer, raw, want string }{
		{"/password", `"hunter2"`, `"***"`},
		{"/password", `17`, `"***"`},
		{"/password", `["hunter2",{"password":"hunter2"}]`, `["***","***"]`},
		{"/auth/key", `{"auth":"hunter2","user":"u"}`, `{"auth":"***","user":"u"}`},
		{"/auth/key", `{"auth":["hunter2"],"user":"u"}`, `{"auth":["***"],"user":"u"}`},
		{"/auth/key", `{"auth":null,"user":["u"]}`, `{"auth":null,"user":["u"]}`},
		{"/users/*/key", `{"users":"hunter2","n":1}`, `{"users":"***","n":1}`},
		{"/users/*/key", `{"users":["hunter2",{"key":"k","n":1}]}`, `{"users":["***",{"key":"***","n":1}]}`},
		{"/1", `["a","hunter2"]`, `["a","***"]`},
	} {
		is := is.New(t)
		m, err := MaskOf(c.pointer)
		is.NoErr(err)
		shown, hid := m.Strict(nil).Hide(json.RawMessage(c.raw))
		is.Equal(string(shown), c.want)
		is.Equal(hid, shown != nil && string(shown) != c.raw)
	}
}

func TestStrictMaskHidesUndeclaredMembers(t *testing.T) {
	t.Parallel()
	type inner struct{ ID int }
	type embedded struct{ Own int }
	type tree struct {
		Name     string
		Children []*tree
	}
	type args struct {
		embedded
		Password string `json:"password" secret:"true"`
		User     string `json:"user"`
		At       time.Time
		Big      *big.Int
		In       *inner
		List     []inner
		Dict     map[string]inner
		Any      any
		Raw      json.RawMessage
		Bytes    []byte
		Empty    struct{}
		Tree     tree
		Omitted  int `json:"-"`
	}
	for _, c := range []struct{ raw, want string }{
		{`{"user":"u","token":"s"}`, `{"user":"u","token":"***"}`},
		{`{"USER":"u","Own":1,"embedded":{"Own":2}}`, `{"USER":"u","Own":1,"embedded":"***"}`},
		{`{"In":{"ID":1,"key":"s"},"Omitted":2}`, `{"In":{"ID":1,"key":"***"},"Omitted":"***"}`},
		{`{"List":[{"id":1,"key":"s"},null],"Dict":{"a":{"ID":1,"key":{"k":"s"}}}}`, `{"List":[{"id":1,"key":"***"},null],"Dict":{"a":{"ID":1,"key":"***"}}}`},
		{`{"Any":{"a":[1]},"Raw":{"b":2},"Big":7,"At":"2026-01-02T03:04:05Z","Bytes":"AQ=="}`, ""},
		{`{"Empty":{"key":"s"}}`, `{"Empty":{"key":"***"}}`},
		{`{"Tree":{"Name":"a","Children":[{"Name":"b","key":"s","Children":[{"key":"s"}]}]}}`, `{"Tree":{"Name":"a","Children":[{"Name":"b","key":"***","Children":[{"key":"***"}]}]}}`},
		{`{"user":{"key":"s"},"Own":["s"]}`, `{"user":{"key":"***"},"Own":["***"]}`},
		{`{"List":{"key":"s"},"In":[{"ID":"s"}]}`, `{"List":{"key":"***"},"In":["***"]}`},
	} {
		is := is.New(t)
		m, err := MaskOf("/password")
		is.NoErr(err)
		shown, hid := m.Strict(text.ShapeOf(reflect.TypeFor[*args]())).Hide(json.RawMessage(c.raw))
		is.Equal(string(shown), cmp.Or(c.want, c.raw))
		is.Equal(hid, c.want != "")
	}
}

func TestMaskAllValues(t *testing.T) {
	is := is.New(t)
	got := MaskAll.JSON(json.RawMessage(`{"a":"s","b":[1,true,null,{"c":-1.5}],"d":{}}`))
	is.Equal(string(got), `{"a":"***","b":["***","***",null,{"c":"***"}],"d":{}}`)
	is.Equal(string(MaskAll.JSON(json.RawMessage(`"s"`))), `"***"`)
}

func TestInvalidMaskPointer(t *testing.T) {
	is := is.New(t)
	for _, wrong := range []string{"", "password", "a/b"} {
		_, err := MaskOf(wrong)
		is.True(err != nil)
	}
}

func FuzzMaskedJSONValue(f *testing.F) {
	f.Add(`{"password":"hunter2","x":[{"password":1}]}`)
	f.Add(`[[["hunter2"]]]`)
	m, err := MaskOf("/password", "/*/password")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		if !json.Valid([]byte(raw)) {
			return
		}
		if got := m.JSON(json.RawMessage(raw)); !json.Valid(got) {
			t.Fatalf("%s became %s", raw, got)
		}
		var v any
		if err := json.Unmarshal(MaskAll.JSON(json.RawMessage(raw)), &v); err != nil {
			t.Fatal(err)
		}
		if !hidden(v) {
			t.Fatalf("%s became %v", raw, v)
		}
	})
}

// hidden reports whether a value reveals only its member names.
func hidden(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for _, one := range v {
			if !hidden(one) {
				return false
			}
		}
	case []any:
		for _, one := range v {
			if !hidden(one) {
				return false
			}
		}
	default:
		return v == nil || v == "***"
	}
	return true
}
