package faultnet

import (
	"bytes"
	"encoding/binary"
	"strings"
)

// armed is a pending request to cut a reply.
type armed struct {
	text string
	done chan struct{}
}

// wire parses a client's messages in version 3 of PostgreSQL's frontend/backend protocol (see "Internals" in the manual). The first message
// has no type. All others consist of a type, a length that includes itself, and a body.
type wire struct {
	started  bool
	head     []byte // the type, the length and the kept part of the body of the current message
	missing  int    // bytes of the body that have not arrived yet
	prepared map[string]string
	explicit bool   // a transaction is open
	wanted   *armed // set if a statement of that transaction contained the text, so that the reply to the COMMIT is to be cut
}

// mostKept limits how much of a message's body is kept. A statement's text comes before its arguments.
const mostKept = 64 << 10

// read parses the next bytes and returns the text of every statement that they execute.
func (w *wire) read(chunk []byte) (statements []string) {
	for len(chunk) > 0 {
		want := 5
		if !w.started {
			want = 4
		}
		if len(w.head) < want {
			n := min(want-len(w.head), len(chunk))
			w.head, chunk = append(w.head, chunk[:n]...), chunk[n:]
			if len(w.head) < want {
				return statements
			}
			w.missing = int(binary.BigEndian.Uint32(w.head[want-4:])) - 4
		}
		n := min(max(w.missing, 0), len(chunk))
		if kept := min(n, mostKept+want-len(w.head)); kept > 0 {
			w.head = append(w.head, chunk[:kept]...)
		}
		w.missing -= n
		if chunk = chunk[n:]; w.missing > 0 {
			return statements
		}
		if w.started {
			if s, ok := w.message(w.head[0], w.head[5:]); ok {
				statements = append(statements, s)
			}
		}
		// A request for encryption does not start the session. If the server refuses it, the client then sends the startup message.
		w.started = w.started || !bytes.HasSuffix(w.head, []byte{0x04, 0xd2, 0x16, 0x2f})
		w.head = w.head[:0]
	}
	return statements
}

// message parses a message and returns the statement that it executes, if any.
func (w *wire) message(kind byte, body []byte) (string, bool) {
	switch kind {
	case 'P': // Parse: name and text
		name, rest := text(body)
		sql, _ := text(rest)
		if w.prepared == nil {
			w.prepared = map[string]string{}
		}
		w.prepared[name] = sql
	case 'B': // Bind: portal and name of a prepared statement
		_, rest := text(body)
		name, _ := text(rest)
		return w.prepared[name], true
	case 'Q': // Query: text
		sql, _ := text(body)
		return sql, true
	}
	return "", false
}

// text reads a string up to its terminating zero byte, or to the end of the bytes that were kept.
func text(b []byte) (string, []byte) {
	s, rest, _ := bytes.Cut(b, []byte{0})
	return string(s), rest
}

// hits reports whether the reply to a statement must be cut.
func (w *wire) hits(sql string, a *armed) bool {
	switch verb := strings.ToLower(strings.TrimRight(sql, "; \n")); {
	case strings.HasPrefix(verb, "begin"):
		w.explicit, w.wanted = true, nil
	case verb == "rollback":
		w.explicit, w.wanted = false, nil
	case verb == "commit":
		hit := a != nil && w.explicit && (a.text == "" || w.wanted == a)
		w.explicit, w.wanted = false, nil
		return hit
	case a == nil || a.text == "" || !strings.Contains(sql, a.text):
	case !w.explicit:
		return true
	default:
		w.wanted = a
	}
	return false
}
