package store_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/matryer/is"

	"github.com/trapeze-run/trapeze/internal/pgtest"
	"github.com/trapeze-run/trapeze/internal/store"
	"github.com/trapeze-run/trapeze/internal/store/view"
)

// dropped are the settings that a store sends when it connects directly.
const dropped = "ignore_startup_parameters = plan_cache_mode,enable_hashjoin,enable_mergejoin,enable_seqscan,enable_bitmapscan,jit," +
	"random_page_cost,seq_page_cost,idle_in_transaction_session_timeout,idle_session_timeout,lock_timeout"

func TestPoolerDroppingSessionSettings(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	for _, mode := range []string{"session", "transaction"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			host := pgtest.Connect(t, pgtest.PoolerInMode(t, url, mode, 3, dropped))
			s, err := store.New(t.Context(), host, store.Options{})
			is.NoErr(err)
			t.Cleanup(s.Close)
			_, err = view.Pods(t.Context(), s, true)
			is.True(err != nil && strings.Contains(err.Error(), "drops settings: set Options.BehindPooler or DirectURL"))
			is.True(store.Transient(err)) // outcomes are kept until the pooler is configured correctly

			s, err = store.New(t.Context(), host, store.Options{BehindPooler: true})
			is.NoErr(err)
			t.Cleanup(s.Close)
			_, err = view.Pods(t.Context(), s, true)
			is.NoErr(err)
		})
	}
}

func TestPooledTransactionsBehindLockedTable(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	url := pgtest.URL(t)
	direct := pgtest.Connect(t, url)
	host := pgtest.Connect(t, pgtest.WithParameter(pgtest.Pooler(t, url, 3), "default_query_exec_mode=exec"))
	s, err := store.New(t.Context(), host, store.Options{BehindPooler: true, StatementTimeout: 400 * time.Millisecond})
	is.NoErr(err)
	t.Cleanup(s.Close)
	tx, err := direct.Begin(t.Context())
	is.NoErr(err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = tx.Exec(t.Context(), `lock table trapeze.lanes`)
	is.NoErr(err)
	reads := func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `select from trapeze.lanes`)
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	is.True(store.LockTimeout(s.Tx(ctx, reads)))
	is.True(store.LockTimeout(view.Snapshot(ctx, s, reads)))
}

// A schema before pg_catalog in the search path can replace functions that statements call without a schema.
func TestForeignFunctionsInSearchPath(t *testing.T) {
	t.Parallel()
	for name, pooled := range map[string]bool{"direct": false, "behind a pooler": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			url := pgtest.EmptyURL(t)
			admin := pgtest.Connect(t, url)
			_, err := admin.Exec(t.Context(), `create schema evil; create function evil.now() returns timestamptz language plpgsql as $$ begin raise 'evil'; end $$`)
			is.NoErr(err)
			url = pgtest.WithParameter(url, "search_path=evil%2Cpg_catalog")
			pgtest.Migrate(t, url)
			config, err := pgxpool.ParseConfig(url)
			is.NoErr(err)
			found := 0
			config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error { // a hook of the host uses the path
				return conn.QueryRow(ctx, `select count(*) from pg_proc where proname = 'now' and pg_function_is_visible(oid) and pronamespace = 'evil'::regnamespace`).Scan(&found)
			}
			host, err := pgxpool.NewWithConfig(t.Context(), config)
			is.NoErr(err)
			t.Cleanup(host.Close)
			s, err := store.New(t.Context(), host, store.Options{BehindPooler: pooled})
			is.NoErr(err)
			t.Cleanup(s.Close)
			podID := uuid.NewString()
			is.NoErr(s.Register(t.Context(), store.PodInfo{PodID: podID, Name: "a", Kinds: []string{"mail"}}, time.Minute))
			is.Equal(found, 1)
			_, err = s.Enqueue(t.Context(), podID, []store.NewJob{{ID: 7, Kind: "mail", Lane: "default", Args: []byte(`{}`)}})
			is.NoErr(err)
			is.NoErr(s.Tx(t.Context(), func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), `select now()`)
				return err
			}))
			var path string
			is.NoErr(host.QueryRow(t.Context(), `select current_setting('search_path')`).Scan(&path))
			is.Equal(path, "evil,pg_catalog") // the host's connections keep theirs
			is.Equal(strings.Join(pgtest.Column[string](t, admin, `select proname::text from pg_proc where pronamespace = 'trapeze'::regnamespace
				and prosqlbody is null and not coalesce(proconfig[1] ~ '^search_path=pg_catalog, (trapeze, )?pg_temp$', false)
				order by 1`), " "), "") // each function sets its path, or was resolved when it was created
		})
	}
}

// pg_dump and security guides set the search path to an empty text.
func TestEmptySearchPath(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	s, err := store.New(t.Context(), pgtest.Connect(t, pgtest.WithParameter(pgtest.URL(t), "search_path=")), store.Options{})
	is.NoErr(err)
	t.Cleanup(s.Close)
	_, err = view.Pods(t.Context(), s, true)
	is.NoErr(err)
}
