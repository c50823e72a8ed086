package handlers

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// Names of the embedded sample files, which are accepted wherever a file path is.
const (
	SampleFlights  = samplePrefix + "flights.csv"      // 20,000 flights
	SampleAirports = samplePrefix + "airports.csv"     // 3,376 airports
	SampleFactors  = samplePrefix + "factors_2024.csv" // three distance bands
)

const samplePrefix = "sample:"

//go:embed testdata/flights.csv testdata/airports.csv testdata/factors_2024.csv
var samples embed.FS

// openFile opens the file with the given path, or an embedded sample file.
func (p *pipeline) openFile(name string) (fs.File, error) {
	if sample, ok := strings.CutPrefix(name, samplePrefix); ok {
		f, err := samples.Open("testdata/" + sample)
		if err != nil {
			return nil, fmt.Errorf("unknown sample %q: want %s, %s or %s", name, SampleFlights, SampleAirports, SampleFactors)
		}
		return f, nil
	}
	var (
		f   fs.File
		err error
	)
	if p.Dir != "" {
		f, err = os.OpenInRoot(p.Dir, name)
	} else {
		f, err = os.Open(name)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: give the path of a CSV file that every pod can read", err)
	}
	if info, err := f.Stat(); err == nil && !info.Mode().IsRegular() {
		_ = f.Close()
		return nil, fmt.Errorf("%s is not a regular file: give the path of a CSV file", name)
	}
	return f, nil
}
