// Command gosec checks for dangerous mistakes. It uses only the rules of gosec, because gosec's own program takes twenty times as much to
// download and build.
package main

import (
	"github.com/securego/gosec/v2/goanalysis"
	"golang.org/x/tools/go/analysis/singlechecker"
)

func main() { singlechecker.Main(goanalysis.Analyzer) }
