// Package schema is the input of ent's code generator.
package schema

import (
	"entgo.io/ent"
	"entgo.io/ent/dialect/entsql"
	"entgo.io/ent/schema"
	"entgo.io/ent/schema/field"
)

// Order is a row of the table orders.
type Order struct{ ent.Schema }

// Fields returns the table's columns.
func (Order) Fields() []ent.Field {
	return []ent.Field{field.Int("id").StorageKey("no")}
}

// Annotations returns the table's name.
func (Order) Annotations() []schema.Annotation {
	return []schema.Annotation{entsql.Annotation{Table: "orders"}}
}
