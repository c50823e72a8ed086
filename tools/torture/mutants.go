package torture

import (
	_ "embed"
	"strings"
	"sync"

	"github.com/trapeze-run/trapeze/tools/torture/overlay"
)

//go:embed mutants.txt
var mutantList string

// Mutant is a bug that is planted in the program under test and that the torture must detect.
type Mutant struct {
	overlay.Bug
	Name, Mistake string
}

// Mutants returns all mutants in the order of mutants.txt.
var Mutants = sync.OnceValue(func() (list []Mutant) {
	bugs, err := overlay.Parse(mutantList)
	if err != nil {
		panic("mutants.txt: " + err.Error())
	}
	for _, b := range bugs {
		name, mistake, _ := strings.Cut(b.Name, ": ")
		list = append(list, Mutant{b, name, mistake})
	}
	return list
})

// MutantNames returns the names of all mutants.
func MutantNames() (names []string) {
	for _, m := range Mutants() {
		names = append(names, m.Name)
	}
	return names
}

// MutantNamed returns the mutant with the given name.
func MutantNamed(name string) (Mutant, bool) {
	for _, m := range Mutants() {
		if m.Name == name {
			return m, true
		}
	}
	return Mutant{}, false
}
