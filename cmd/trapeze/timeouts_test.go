package main

import (
	"regexp"
	"slices"
	"testing"

	"github.com/matryer/is"
)

func TestEmbeddingGuideTimeouts(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	settings := func(file string) []string {
		list := regexp.MustCompile(`(?m)^\s+(\w+Timeout|MaxHeaderBytes|ConnContext):.*`).FindAllString(read(t, file), -1)
		for i, line := range list {
			list[i] = regexp.MustCompile(`\s+`).ReplaceAllString(line, " ")
		}
		slices.Sort(list)
		return list
	}
	serve := settings("../../internal/cli/serve.go")
	is.Equal(len(serve), 6)
	is.Equal(settings("../../docs/embedding.md"), serve)
	is.Equal(settings("../../examples/mounting/main.go"), serve)
}
