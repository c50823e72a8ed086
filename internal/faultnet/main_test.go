package faultnet_test

import (
	"testing"

	"github.com/trapeze-run/trapeze/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
