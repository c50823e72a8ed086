package store

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/trapeze-run/trapeze/job"
)

// statement is SQL with named arguments. A hot statement is assembled from constant parts that refer to an argument as @name.
// [newStatement] numbers the arguments once, when the process starts. This way, any part can be used anywhere in any statement, and a
// statement contains only the parts that its batch needs. pgx.NamedArgs has the same syntax, but parses the SQL text on every call. For a
// finish with next steps, that costs 129 µs and 98 allocations, compared with 1.3 µs and 1 allocation here.
type statement struct {
	text  string
	names []string       // argument names, in order of their placeholder numbers
	at    map[string]int // name → index in names
}

// argument matches an argument's name in a part. No statement contains a string constant with an @.
var argument = regexp.MustCompile(`@[a-z]\w*`)

// newStatement builds a statement from texts. Arguments are numbered in the order in which they first occur.
func newStatement(texts ...string) *statement {
	s := &statement{at: map[string]int{}}
	s.text = argument.ReplaceAllStringFunc(strings.Join(texts, ""), func(name string) string {
		name = name[1:]
		i, ok := s.at[name]
		if !ok {
			i = len(s.names)
			s.names, s.at[name] = append(s.names, name), i
		}
		return fmt.Sprintf("$%d", i+1)
	})
	if len(s.names) > 64 {
		panic("a statement with more arguments than bind can check: " + s.text)
	}
	return s
}

// with returns a WITH clause of named CTEs. A CTE may read earlier ones.
func with(parts ...string) string { return "with " + list(parts...) + "\n" }

// list joins parts with commas, as one clause or as part of a longer list.
func list(parts ...string) string { return strings.Join(parts, ", ") }

// args are the named arguments of a call, in any order.
type args []struct {
	name  string
	value any
}

// bind returns the arguments in order of their placeholder numbers. Each of the statement's names must be given exactly once, and no other
// names are allowed.
func (s *statement) bind(by args) ([]any, error) {
	values := make([]any, len(s.names))
	var given uint64
	for _, a := range by {
		i, ok := s.at[a.name]
		if !ok || given&(1<<i) != 0 {
			return nil, fmt.Errorf("the statement has no argument %q, or has it twice", a.name)
		}
		values[i], given = a.value, given|1<<i
	}
	if len(by) != len(values) {
		return nil, fmt.Errorf("%d arguments for a statement that has %d: %q", len(by), len(values), s.names)
	}
	return values, nil
}

// run is like [Rows] but takes a statement with named arguments.
func run[T any](ctx context.Context, s *Store, scan pgx.RowToFunc[T], st *statement, by args) ([]T, error) {
	values, err := st.bind(by)
	if err != nil {
		return nil, err
	}
	return Rows(ctx, s, scan, st.text, values...)
}

// runIn is like [run] but runs in the caller's transaction. The pinned planner settings stay in effect for the rest of the transaction.
func runIn[T any](ctx context.Context, s *Store, db DB, scan pgx.RowToFunc[T], st *statement, by args) ([]T, error) {
	values, err := st.bind(by)
	if err != nil {
		return nil, err
	}
	return QueryPinned(ctx, db, scan, s.In(st.text), values)
}

// queue adds a statement to a batch in the caller's transaction. The list argument is filled when the batch is sent.
func queue[T any](batch *pgx.Batch, s *Store, scan pgx.RowToFunc[T], st *statement, by args, list *[]T) error {
	values, err := st.bind(by)
	if err != nil {
		return err
	}
	batch.Queue(s.In(st.text), values...).Query(func(rows pgx.Rows) (err error) {
		*list, err = pgx.CollectRows(rows, scan)
		return err
	})
	return nil
}

// askFor is like [run] but runs in the caller's transaction, without pinned plans.
func askFor[T any](ctx context.Context, s *Store, db DB, scan pgx.RowToFunc[T], st *statement, by args) ([]T, error) {
	values, err := st.bind(by)
	if err != nil {
		return nil, err
	}
	return Query(ctx, s, db, scan, st.text, values...)
}

// do runs a statement that returns no rows in the caller's transaction, and returns the number of rows that it wrote.
func do(ctx context.Context, s *Store, db DB, st *statement, by args) (int64, error) {
	values, err := st.bind(by)
	if err != nil {
		return 0, err
	}
	tag, err := db.Exec(ctx, s.In(st.text), values...)
	return tag.RowsAffected(), err
}

// columns are the columns of a list of T, a type of pointers. A statement takes some of them, either as one array for each column, or as the values of one T. The
// arguments are named after the columns, with a prefix.
type columns[T any] struct {
	prefix string
	list   []columnOf[T]
}

type columnOf[T any] struct {
	name, kind string
	array      func(list []T) any
	value      func(T) any
}

func column[T, V any](name, kind string, value func(T) V) columnOf[T] {
	return columnOf[T]{name, kind, func(list []T) any {
		values := make([]V, len(list))
		for i, t := range list {
			values[i] = value(t)
		}
		return values
	}, func(t T) any { return value(t) }}
}

// rare is like column, for values that most lists lack. If all of a list's values are nil, the array is null, which costs nothing.
func rare[T, V any](name, kind string, value func(T) *V) columnOf[T] {
	c := column(name, kind, value)
	all := c.array
	c.array = func(list []T) any {
		if !slices.ContainsFunc(list, func(t T) bool { return value(t) != nil }) {
			return []*V(nil)
		}
		return all(list)
	}
	return c
}

// each formats each column, given the prefix, its name and its type, except the named ones.
func (c columns[T]) each(format string, except ...string) string {
	var all []string
	for _, column := range c.list {
		if !slices.Contains(except, column.name) {
			all = append(all, fmt.Sprintf(format, c.prefix, column.name, column.kind))
		}
	}
	return list(all...)
}

// params returns the array arguments of the columns, and names returns the columns' names in the same order.
func (c columns[T]) params(except ...string) string { return c.each("@%[1]s%[2]s::%[3]s[]", except...) }
func (c columns[T]) names(except ...string) string  { return c.each("%[1]s%[2]s", except...) }

// arrays returns those arguments of a statement that are arrays of the list's columns.
func (c columns[T]) arrays(st *statement, list []T) args {
	return c.args(st, func(column columnOf[T]) any { return column.array(list) })
}

// values returns those arguments of a statement that are values of t.
func (c columns[T]) values(st *statement, t T) args {
	return c.args(st, func(column columnOf[T]) any { return column.value(t) })
}

func (c columns[T]) args(st *statement, value func(columnOf[T]) any) args {
	by := make(args, 0, len(st.names))
	for _, column := range c.list {
		if name := c.prefix + column.name; st.takes(name) {
			by = append(by, args{{name, value(column)}}...)
		}
	}
	return by
}

func (s *statement) takes(name string) bool {
	_, takes := s.at[name]
	return takes
}

func pointers[T any](list []T) []*T {
	all := make([]*T, len(list))
	for i := range list {
		all[i] = &list[i]
	}
	return all
}

// split returns the claims' ids and fences, as arrays for a statement.
func split(claims []job.Lease) (ids, fences []int64) {
	for _, c := range claims {
		ids, fences = append(ids, c.JobID), append(fences, c.Fence)
	}
	return ids, fences
}

// set returns the ids that a statement has returned.
func set(ids []int64) map[int64]bool {
	found := make(map[int64]bool, len(ids))
	for _, id := range ids {
		found[id] = true
	}
	return found
}
