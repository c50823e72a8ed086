package admin

import (
	"encoding/json"
	"testing"

	"github.com/matryer/is"
)

func TestPriorityChangePreservesPlanFields(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	text, n, err := nicePlan([]byte(`[{"kind":"a","args":{"less":"<","n":1.50},"emitted":true},{"kind":"b","args":null,"later":[1],"priority":3}]`), -5)
	is.NoErr(err)
	is.Equal(n, 2)
	is.True(json.Valid([]byte(*text)))
	is.Equal(*text, `[{"args":{"less":"<","n":1.50},"emitted":true,"kind":"a","priority":-5},{"args":null,"kind":"b","later":[1],"priority":-5}]`)
}
