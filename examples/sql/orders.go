// Package orders stores an order and submits its job in one transaction of database/sql, sqlx, GORM, Bun, ent or sqlc: a job exists
// if and only if its order does.
package orders

//go:generate go run -mod=mod entgo.io/ent/cmd/ent@v0.14.5 generate --feature sql/execquery ./ent/schema
//go:generate env CGO_ENABLED=0 go run github.com/sqlc-dev/sqlc/cmd/sqlc@v1.30.0 generate

import (
	"context"
	"database/sql"

	"github.com/jmoiron/sqlx"
	"github.com/uptrace/bun"
	"gorm.io/gorm"

	"github.com/trapeze-run/trapeze/examples/sql/ent"
	"github.com/trapeze-run/trapeze/examples/sql/sqlc"
	"github.com/trapeze-run/trapeze/runner"
)

// Ship is the job of an order.
type Ship struct{ Order int }

// Kind implements the arguments of a job.
func (Ship) Kind() string { return "ship" }

// Order is a row for GORM, Bun and sqlx.
type Order struct {
	No int `gorm:"primaryKey" bun:",pk"`
}

// WithSQL uses a transaction of database/sql with any driver.
func WithSQL(ctx context.Context, tx *sql.Tx, no int) error {
	if _, err := tx.ExecContext(ctx, `insert into orders (no) values ($1)`, no); err != nil {
		return err
	}
	_, err := runner.EnqueueSQL(ctx, tx, Ship{no})
	return err
}

// WithSqlx uses a transaction of sqlx.
func WithSqlx(ctx context.Context, tx *sqlx.Tx, no int) error {
	if _, err := tx.NamedExecContext(ctx, `insert into orders (no) values (:no)`, Order{no}); err != nil {
		return err
	}
	_, err := runner.EnqueueSQL(ctx, tx, Ship{no})
	return err
}

// WithGORM uses a transaction of GORM.
func WithGORM(tx *gorm.DB, no int) error {
	if err := tx.Create(&Order{no}).Error; err != nil {
		return err
	}
	_, err := runner.EnqueueSQL(tx.Statement.Context, tx.Statement.ConnPool, Ship{no})
	return err
}

// WithBun uses a transaction of Bun, which replaces placeholders itself; the *sql.Tx inside it does not.
func WithBun(ctx context.Context, tx bun.Tx, no int) error {
	if _, err := tx.NewInsert().Model(&Order{no}).Exec(ctx); err != nil {
		return err
	}
	_, err := runner.EnqueueSQL(ctx, tx.Tx, Ship{no})
	return err
}

// WithEnt uses a transaction of ent, which has QueryContext with the feature sql/execquery.
func WithEnt(ctx context.Context, tx *ent.Tx, no int) error {
	if err := tx.Order.Create().SetID(no).Exec(ctx); err != nil {
		return err
	}
	_, err := runner.EnqueueSQL(ctx, tx, Ship{no})
	return err
}

// WithSqlc uses the queries that sqlc generated, and the transaction below them.
func WithSqlc(ctx context.Context, tx *sql.Tx, no int) error {
	if err := sqlc.New(tx).InsertOrder(ctx, int32(no)); err != nil {
		return err
	}
	_, err := runner.EnqueueSQL(ctx, tx, Ship{no})
	return err
}
