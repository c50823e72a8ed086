// Command gosec checks for dangerous mistakes. It uses only gosec's rules, because downloading and building gosec's own program takes
// twenty times as long.
package main

import (
	"github.com/securego/gosec/v2/goanalysis"
	"golang.org/x/tools/go/analysis/singlechecker"
)

func main() { singlechecker.Main(goanalysis.Analyzer) }
