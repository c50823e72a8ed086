package ui

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"time"
)

//go:embed static
var static embed.FS

// file is a file that pages need, with the name of its content.
type file struct {
	body []byte
	hash string
	kind string // its media type
}

// files serves what pages need. Pages name each with its hash, so that a browser keeps it for good, and a new release is a new name.
var files = load()

type fileServer map[string]file

func load() fileServer {
	list := fileServer{}
	entries, err := fs.ReadDir(static, "static")
	if err != nil {
		panic(err) // they are embedded
	}
	for _, e := range entries {
		body, err := static.ReadFile("static/" + e.Name())
		if err != nil {
			panic(err)
		}
		sum := sha256.Sum256(body)
		list[e.Name()] = file{body: body, hash: hex.EncodeToString(sum[:8]), kind: mime.TypeByExtension(path.Ext(e.Name()))}
	}
	return list
}

// address is how a page names a file: with its hash.
func (s fileServer) address(name string) string { return "static/" + name + "?v=" + s[name].hash }

func (s fileServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("file")
	f, ok := s[name]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("ETag", `"`+f.hash+`"`)
	h.Set("Cache-Control", "no-cache")
	if r.URL.Query().Get("v") == f.hash {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.body))
}
