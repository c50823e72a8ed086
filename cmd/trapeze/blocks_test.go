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

// notExcerpts are the Go blocks that are in no file of the repository, by their first line, with the reason.
var notExcerpts = map[string]string{
	"exporter, err := otlptracegrpc.New(ctx)": "the exporter is not a dependency of ours",
}

// pages returns the pages of the site, without the design decisions, which are a record of their time.
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

// blocks returns the code blocks of a page whose info string begins with language, with the rest of that string.
func blocks(t *testing.T, page, language string) (all []block) {
	t.Helper()
	for _, found := range regexp.MustCompile("(?ms)^```"+language+`\b ?([^\n]*)\n(.*?)^`+"```$").FindAllStringSubmatch(read(t, page), -1) {
		all = append(all, block{mark: found[1], text: found[2]})
	}
	return all
}

type block struct{ mark, text string }

// TestEveryGoBlockIsAnExcerptOfCodeThatCompiles finds the tokens of each Go block of the documentation in a Go file of the repository.
// Comments and indentation may differ.
func TestEveryGoBlockIsAnExcerptOfCodeThatCompiles(t *testing.T) {
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
	seen := 0
	for _, page := range pages(t) {
		for _, one := range blocks(t, page, "go") {
			first, _, _ := strings.Cut(one.text, "\n")
			if notExcerpts[first] != "" {
				continue
			}
			seen++
			for _, part := range strings.Split(one.text, "\n\n") { // paragraphs, which a block may take from several places
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

// tokens writes the tokens of Go code, one a line, without comments.
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
