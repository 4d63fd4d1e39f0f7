//go:build bench

package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// figures are what make bench-board prints; TestMain writes them to the file
// that BATON_FIGURES names.
var figures []string

func figure(name string, value any, unit string, more ...any) {
	if f, ok := value.(float64); ok {
		value = fmt.Sprintf("%.3f", f)
	}
	figures = append(figures, fmt.Sprintf("%s %v %s", name, value, fmt.Sprintf(unit, more...)))
}

func TestMain(m *testing.M) {
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if name := os.Getenv("BATON_FIGURES"); name != "" {
		if err := os.WriteFile(name, []byte(strings.Join(figures, "\n")+"\n"), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// median of an odd or even number of values, at least one.
func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (v[len(v)/2] + v[(len(v)-1)/2]) / 2
}

// spread is the median with the least and the greatest value.
func spread(v []float64, unit string) string {
	return fmt.Sprintf("%.2f %s, %.2f to %.2f", median(v), unit, slices.Min(v), slices.Max(v))
}
