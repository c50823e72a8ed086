package dburl

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrReadOnly matches the error for a connection that [RequireWrites] rejected because the server accepts no writes.
var ErrReadOnly = errors.New("the server accepts no writes: it is a standby, or default_transaction_read_only is on; " +
	"use the address of the primary, or list all hosts with target_session_attrs=read-write")

// errNoAnswer explains a connection on which the first query timed out. A pooler accepts clients for which it has no server connection.
var errNoAnswer = errors.New("connected, but the first query was not answered in time; " +
	"a pooler may lack server connections: with pool_mode = session it needs one for each connection of each pod")

// RequireWrites makes connections to read-only servers fail, so that the next host is tried, or the same host again later. If the user has
// set target_session_attrs to a value other than any, that setting applies instead. behindPooler states whether there is a transaction
// pooler in front of the server.
func RequireWrites(config *pgx.ConnConfig, behindPooler bool) {
	validate := config.ValidateConnect
	config.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if validate == nil {
			return acceptsWrites(ctx, conn, behindPooler)
		}
		err := validate(ctx, conn)
		if errors.Is(err, pgconn.ErrReadOnlyConnection) || errors.Is(err, pgconn.ErrStandbyConnection) {
			err = fmt.Errorf("%w (%w)", ErrReadOnly, err)
		}
		return err
	}
}

// endSession terminates a session that a transaction pooler has opened on a standby. If only the client connection were closed, the session
// would stay open, and the pooler would hand it out again. Sessions on a primary are not affected.
const endSession = `select pg_terminate_backend(pg_backend_pid()) where pg_is_in_recovery()`

func acceptsWrites(ctx context.Context, conn *pgconn.PgConn, behindPooler bool) error {
	standby, off := conn.ParameterStatus("in_hot_standby"), conn.ParameterStatus("default_transaction_read_only")
	if behindPooler || standby == "" || off == "" { // a pooler does not report these parameters, or reports outdated values
		result := conn.ExecParams(ctx, "show transaction_read_only", nil, nil, nil, nil).Read()
		switch {
		case pgconn.Timeout(result.Err):
			return fmt.Errorf("%w (%v)", errNoAnswer, result.Err) // pgconn drops the text of an error that wraps a timeout
		case result.Err != nil:
			return result.Err
		case len(result.Rows) == 1 && string(result.Rows[0][0]) == "on":
			standby = "on"
		default:
			return nil
		}
	}
	if standby == "on" || off == "on" {
		if behindPooler {
			_ = conn.Exec(ctx, endSession).Close() // fails on a standby, because it terminates the session
		}
		return ErrReadOnly
	}
	return nil
}
