package pgtest

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/matryer/is"
)

func TestParameterInAddressForms(t *testing.T) {
	for in, want := range map[string]string{
		"postgres://h/d":                 "postgres://h/d?role=r",
		"postgres://h/d?sslmode=disable": "postgres://h/d?sslmode=disable&role=r",
		"host=h dbname=d":                "host=h dbname=d role=r",
	} {
		is := is.New(t)
		is.Equal(WithParameter(in, "role=r"), want)
	}
}

func TestDatabaseInAddressForms(t *testing.T) {
	for in, want := range map[string]string{
		"postgres://u:p@h:5432/old?sslmode=disable": "postgres://u:p@h:5432/new?sslmode=disable",
		"postgresql://h": "postgresql://h/new",
		"postgres://a:1,b:2/old?target_session_attrs=rw&pool_max_conns=7&dbname=other": "postgres://a:1,b:2/new?target_session_attrs=rw",
		"postgres:///old?host=/run/postgresql":                                         "postgres:///new?host=/run/postgresql",
		"host=h user=u dbname=old":                                                     "host=h user=u dbname=old dbname=new",
	} {
		t.Run(in, func(t *testing.T) {
			is := is.New(t)
			is.Equal(WithDatabase(in, "new"), want)
			if strings.Contains(in, ",") {
				return
			}
			config, err := pgconn.ParseConfig(WithDatabase(in, "new"))
			is.NoErr(err)
			is.Equal(config.Database, "new") // the database that pgx would connect to
		})
	}
}
