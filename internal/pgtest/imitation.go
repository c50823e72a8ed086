package pgtest

import (
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Imitation starts a server that speaks PostgreSQL's protocol but is not PostgreSQL, and returns its URL. The server answers "select
// version()" with the given text, reports that it accepts writes, and rejects every other statement.
func Imitation(t testing.TB, version string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	answers := map[string]string{"select version()": version, "show transaction_read_only": "off"}
	var open sync.WaitGroup
	open.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			open.Go(func() { imitate(client, answers) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		open.Wait()
	})
	return "postgres://app@" + listener.Addr().String() + "/app?sslmode=disable"
}

// imitate serves a client until it disconnects. Each statement in answers returns one row with one column.
func imitate(client net.Conn, answers map[string]string) {
	defer client.Close()
	server := pgproto3.NewBackend(client, client)
	if _, err := server.ReceiveStartupMessage(); err != nil {
		return
	}
	send := func(messages ...pgproto3.BackendMessage) {
		for _, message := range messages {
			server.Send(message)
		}
	}
	ready := &pgproto3.ReadyForQuery{TxStatus: 'I'}
	columns := &pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{{Name: []byte("answer"), DataTypeOID: 25, DataTypeSize: -1}}}
	row := func(statement string) {
		send(&pgproto3.DataRow{Values: [][]byte{[]byte(answers[statement])}}, &pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
	}
	// known reports whether the database supports a statement, and rejects the statement if it does not.
	known := func(statement string) bool {
		_, ok := answers[statement]
		if !ok {
			send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "0A000", Message: "unsupported: " + statement})
		}
		return ok
	}
	send(&pgproto3.AuthenticationOk{}, &pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"}, &pgproto3.BackendKeyData{SecretKey: make([]byte, 4)}, ready)
	prepared, failed, statement := map[string]string{}, false, ""
	for server.Flush() == nil {
		message, err := server.Receive()
		if err != nil {
			return
		}
		if _, sync := message.(*pgproto3.Sync); failed && !sync { // after an error, the server ignores messages until the next Sync
			continue
		}
		switch message := message.(type) {
		case *pgproto3.Query:
			if text := strings.ToLower(strings.TrimRight(message.String, "; ")); known(text) {
				send(columns)
				row(text)
			}
			send(ready)
		case *pgproto3.Parse:
			prepared[message.Name] = strings.ToLower(message.Query)
			if failed = !known(prepared[message.Name]); !failed {
				send(&pgproto3.ParseComplete{})
			}
		case *pgproto3.Describe:
			if message.ObjectType == 'S' {
				send(&pgproto3.ParameterDescription{})
			}
			send(columns)
		case *pgproto3.Bind:
			statement = prepared[message.PreparedStatement]
			send(&pgproto3.BindComplete{})
		case *pgproto3.Execute:
			row(statement)
		case *pgproto3.Close:
			send(&pgproto3.CloseComplete{})
		case *pgproto3.Sync:
			failed = false
			send(ready)
		case *pgproto3.Terminate:
			return
		}
	}
}
