package maintenance

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// session is a [Session] for tests only, which opens on first use.
type session struct {
	open func(context.Context) (*pgx.Conn, error)
	conn *pgx.Conn
}

func (s *session) Do(ctx context.Context, do func(*pgx.Conn) error) (err error) {
	if s.conn == nil || s.conn.IsClosed() {
		if s.conn, err = s.open(ctx); err != nil {
			return err
		}
	}
	if err = do(s.conn); err != nil {
		_ = s.conn.Close(context.WithoutCancel(ctx))
	}
	return err
}
