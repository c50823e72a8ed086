//go:build long

package main

import (
	"testing"

	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestADoctorFindsAStandby(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	primary := pgtest.Primary(t)
	pgtest.Migrate(t, primary.URL())
	standby := patient{database: database{t, primary.AddStandby(t).URL()}}
	is.True(standby.finds("server", failing, "is a standby and accepts no writes"))
	is.True(standby.finds("schema", healthy, ""))
	is.True(standby.finds("api", failing, "accepts no writes"))
}
