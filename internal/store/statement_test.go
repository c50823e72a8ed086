package store

import (
	"testing"

	"github.com/matryer/is"
)

func TestRepeatedStatementArgument(t *testing.T) {
	is := is.New(t)
	s := newStatement(with(`a as (select @from::int)`, `b as (select @to::int, @from::int)`), `select * from a, b where @to > 0 and '{1}' @> null`)
	is.Equal(s.text, "with a as (select $1::int), b as (select $2::int, $1::int)\nselect * from a, b where $2 > 0 and '{1}' @> null")
	values, err := s.bind(args{{"to", 2}, {"from", 1}})
	is.NoErr(err)
	is.Equal(values, []any{1, 2})
}

func TestForeignStatementArguments(t *testing.T) {
	is := is.New(t)
	s := newStatement(`select @from, @to`)
	for _, wrong := range []args{nil, {{"from", 1}}, {{"from", 1}, {"from", 2}}, {{"from", 1}, {"until", 2}}, {{"from", 1}, {"to", 2}, {"by", 3}}} {
		_, err := s.bind(wrong)
		is.True(err != nil) // an argument is missing, given twice, or unknown
	}
}

func TestArgumentBindingAllocations(t *testing.T) {
	_, _, by := readRanges(nil)
	by = append(append(by, newJobs.arrays(enqueueSQL, []*NewJob{{ID: 1}})...), args{{"pod", nil}}...)
	if n := testing.AllocsPerRun(100, func() { _, _ = enqueueSQL.bind(by) }); n > 1 {
		t.Errorf("%v allocations", n)
	}
}
