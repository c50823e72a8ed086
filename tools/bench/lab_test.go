package main

import (
	"testing"

	"github.com/matryer/is"
)

func TestSizesAreScaled(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	is.Equal((&lab{scale: 0.1}).size(1000), 100)
	is.Equal((&lab{scale: 0.1}).size(2), 1)
	is.Equal((&lab{scale: 3}).size(0), 0) // for example, no blocked jobs
}
