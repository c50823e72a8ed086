// Command gosec looks for mistakes that are dangerous. It has gosec's rules without the rest of gosec's own program, which would be
// twenty times as much to download and build.
package main

import (
	"github.com/securego/gosec/v2/goanalysis"
	"golang.org/x/tools/go/analysis/singlechecker"
)

func main() { singlechecker.Main(goanalysis.Analyzer) }
