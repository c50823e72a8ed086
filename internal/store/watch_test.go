package store_test

import (
	"strings"
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/store"
)

func TestEffectsInOtherSchema(t *testing.T) {
	is := is.New(t)
	effects := store.Effects("elsewhere")
	is.Equal(len(effects), 11) // all statements are distinct
	for sql, effect := range effects {
		is.True(!strings.Contains(sql, "trapeze.")) // the statements use the requested schema
		is.True(effect != store.NoEffect)
	}
	is.Equal(store.JobsOf([]any{int64(7), "more"}), []int64{7})
	is.Equal(store.JobsOf([]any{[]int64{7, 8}}), []int64{7, 8})
	is.Equal(store.JobsOf([]any{"other"}), nil)
}
