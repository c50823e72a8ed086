package ui

import (
	"embed"
	"html/template"
	"io/fs"
	"net/url"
	"path"
	"sync"

	"github.com/trapeze-run/trapeze/job"
)

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
	"spark": sparkOf, "shape": shapeOf, "became": becameOf, "late": late, "escape": url.PathEscape, "took": tookOf, "missed": missedWords,
	"trend": trendOf, "timing": timing, "rate": rate, "seconds": seconds,
}
