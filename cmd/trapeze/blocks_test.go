package main

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// notExcerpts lists the Go code blocks that occur in no file of the repository. It maps the first line of each block to the reason.
var notExcerpts = map[string]string{
	"exporter, err := otlptracegrpc.New(ctx)": "the exporter is not a dependency of ours",
}

// pages returns the site's pages, except the design decisions, which are not kept up to date.
func pages(t *testing.T) (files []string) {
	t.Helper()
	err := filepath.WalkDir("../../docs", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{"adr", "node_modules", ".vitepress"}, d.Name()):
			return filepath.SkipDir
		case filepath.Ext(path) == ".md":
			files = append(files, path)
		}
		return nil
	})
	is.New(t).NoErr(err)
	return append(files, "../../README.md")
}

// TestGoBlocksInDocuments checks that the tokens of each Go block in the documentation occur in a Go file of the
// repository. Comments and indentation may differ.
func TestGoBlocksInDocuments(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var code []string
	is.NoErr(filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == "internal" || strings.HasPrefix(d.Name(), ".") && d.Name() != ".."):
			return filepath.SkipDir
		case filepath.Ext(path) == ".go":
			text, err := os.ReadFile(path)
			code = append(code, tokens(text))
			return err
		}
		return nil
	}))
	block := regexp.MustCompile("(?ms)^ *```go\\b[^\n]*\n(.*?)^ *```$")
	seen := 0
	for _, page := range pages(t) {
		for _, found := range block.FindAllStringSubmatch(read(t, page), -1) {
			first, _, _ := strings.Cut(found[1], "\n")
			if notExcerpts[first] != "" {
				continue
			}
			seen++
			for _, part := range strings.Split(found[1], "\n\n") { // a block may combine paragraphs from different places
				want := tokens([]byte(part))
				if !slices.ContainsFunc(code, func(file string) bool { return strings.Contains(file, want) }) {
					t.Errorf("%s: no Go file has this code:\n%s", page, part)
				}
			}
		}
	}
	if seen < 40 {
		t.Errorf("only %d Go blocks found in the documents: is the pattern still right?", seen)
	}
}

// tokens returns the tokens of Go code, one per line, without comments.
func tokens(code []byte) string {
	var s scanner.Scanner
	s.Init(token.NewFileSet().AddFile("", -1, len(code)), code, nil, 0)
	var b strings.Builder
	b.WriteString("\n")
	for {
		_, kind, literal := s.Scan()
		switch {
		case kind == token.EOF:
			return b.String()
		case kind == token.SEMICOLON:
			literal = ";"
		case literal == "":
			literal = kind.String()
		}
		b.WriteString(literal + "\n")
	}
}

// TestDocumentLinks checks that the files and headings that pages link to exist. `make docs` also checks links to the site's
// files.
func TestDocumentLinks(t *testing.T) {
	t.Parallel()
	seen := 0
	all := append(pages(t), "../../CONTRIBUTING.md", "../../AGENTS.md", "../../SECURITY.md", "../../CHANGELOG.md", "../../examples/orders/README.md", "../../examples/sql/README.md")
	for _, page := range all {
		text := regexp.MustCompile("(?s)```.*?```").ReplaceAllString(read(t, page), "") // generic Go code looks like links
		for _, found := range regexp.MustCompile(`\]\(([^)#\s]*)(?:#([^)\s]+))?\)`).FindAllStringSubmatch(text, -1) {
			if strings.Contains(found[1], "://") {
				continue
			}
			seen++
			file := filepath.Join(filepath.Dir(page), found[1])
			if found[1] == "" {
				file = page
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: dead link %s", page, found[1])
			} else if found[2] != "" && filepath.Ext(file) == ".md" && !slices.Contains(anchors(read(t, file)), found[2]) {
				t.Errorf("%s: %s has no heading #%s", page, file, found[2])
			}
		}
	}
	if seen < 200 {
		t.Errorf("only %d links found: is the pattern still right?", seen)
	}
}

// anchors returns the anchors that GitHub and the site generate for a page's headings.
func anchors(page string) (all []string) {
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		text := regexp.MustCompile(`[^\p{L}\p{N}\p{M}_\- ]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		all = append(all, strings.ReplaceAll(text, " ", "-"))
	}
	return all
}

func TestNightlyRunLegs(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	list := func(file, pattern, separator string) []string {
		found := regexp.MustCompile(pattern).FindStringSubmatch(read(t, file))
		is.True(found != nil) // the file contains the list
		return strings.Split(found[1], separator)
	}
	is.Equal(list("../../.github/workflows/nightly.yml", `leg: \[(.*)\]`, ", "), list("../../.ci/long", `(?m)^legs=\((.*)\)`, " "))
}
