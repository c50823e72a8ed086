package dburl_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/dburl"
)

func TestReadOnlyServerDetection(t *testing.T) {
	for found, readOnly := range map[error]bool{
		pgconn.ErrReadOnlyConnection:  true,
		pgconn.ErrStandbyConnection:   true,
		dburl.ErrReadOnly:             true,  // the check was installed twice, as in a cloned pool
		pgconn.ErrPrimaryConnection:   false, // target_session_attrs=standby
		pgconn.ErrReadWriteConnection: false, // target_session_attrs=read-only
		io.ErrUnexpectedEOF:           false,
	} {
		is := is.New(t)
		config := &pgx.ConnConfig{}
		config.ValidateConnect = func(context.Context, *pgconn.PgConn) error { return found }
		dburl.RequireWrites(config, false)
		err := config.ValidateConnect(t.Context(), nil)
		is.True(errors.Is(err, found))
		is.Equal(errors.Is(err, dburl.ErrReadOnly), readOnly)
	}
}
