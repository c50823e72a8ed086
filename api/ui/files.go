package ui

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html/template"
	"io/fs"
	"mime"
	"net/http"
	"net/url"
	"path"
	"sync"
	"time"

	"github.com/trapeze-run/trapeze/job"
)

//go:embed static
var static embed.FS

// file is a static file.
type file struct {
	body []byte
	hash string // the hash of the content
	kind string // the media type
}

// files holds the static files, in a folder named after the hash of all files. Browsers cache them forever, and each new release uses a new
// folder, so scripts that import each other by name always come from the same release.
var files = sync.OnceValue(load)

type fileServer struct {
	folder string
	byName map[string]file
}

func load() fileServer {
	list, all := map[string]file{}, sha256.New()
	entries, err := fs.ReadDir(static, "static")
	if err != nil {
		panic(err) // cannot happen: the files are embedded
	}
	for _, e := range entries {
		body, err := static.ReadFile("static/" + e.Name())
		if err != nil {
			panic(err)
		}
		sum := sha256.Sum256(body)
		all.Write(append([]byte(e.Name()), sum[:]...))
		list[e.Name()] = file{body: body, hash: hex.EncodeToString(sum[:8]), kind: mime.TypeByExtension(path.Ext(e.Name()))}
	}
	return fileServer{hex.EncodeToString(all.Sum(nil)[:8]), list}
}

// address returns the URL of a file, relative to the dashboard's root.
func (s fileServer) address(name string) string { return "static/" + s.folder + "/" + name }

func (s fileServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f, ok := s.byName[r.PathValue("file")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("ETag", `"`+f.hash+`"`)
	h.Set("Cache-Control", "no-cache")
	if r.PathValue("folder") == s.folder {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.body))
}

//go:embed templates/*.html
var sources embed.FS

// templates maps each page to its template, which includes the layout. The templates are parsed on first use, because most commands serve
// no pages.
var templates = sync.OnceValue(parse)

func parse() map[string]*template.Template {
	layout := template.Must(template.New("layout.html").Funcs(functions).ParseFS(sources, "templates/layout.html", "templates/parts.html"))
	list := map[string]*template.Template{}
	files, err := fs.Glob(sources, "templates/*.html")
	if err != nil {
		panic(err) // cannot happen: the pattern is valid
	}
	for _, file := range files {
		if layout.Lookup(path.Base(file)) == nil {
			list[path.Base(file)] = template.Must(template.Must(layout.Clone()).ParseFS(sources, file))
		}
	}
	return list
}

// functions lists the functions that templates call.
var functions = template.FuncMap{
	"ago": ago, "lasted": lasted, "number": number[int], "count": number[int64], "upTo": upTo, "short": short, "plain": plain, "lines": lines, "pretty": pretty, "folds": folds,
	"calls": calls, "counts": counts, "text": orEmpty[string], "reason": orEmpty[job.Reason], "class": orEmpty[job.ErrorClass], "quality": orEmpty[job.OutcomeStatus], "file": func(name string) string { return files().address(name) }, "percent": percent, "title": title, "at": at,
	"add": func(a, b int) int { return a + b }, "minus": func(a, b int) int { return a - b }, "sinces": func() []since { return sinces }, "known": known, "rows": rowsFor,
	"spark": sparkOf, "shape": shapeOf, "health": shapeOfHealth, "became": becameOf, "late": late, "escape": url.PathEscape, "took": tookOf, "missed": missedWords,
	"trend": trendOf, "timing": timing, "rate": rate, "seconds": seconds,
}
