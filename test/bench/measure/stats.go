package measure

import (
	"math"
	"slices"
)

// Median returns the middle value, or the mean of the two middle ones; 0 without values.
func Median(values []float64) float64 { return Quantile(values, 0.5) }

// Spread returns the distance between the first and the third quartile.
func Spread(values []float64) float64 { return Quantile(values, 0.75) - Quantile(values, 0.25) }

// Quantile returns the value below which a share q (0 to 1) of the values lies, interpolated between neighbours (the method of R's
// default, type 7); 0 without values.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	low := int(math.Floor(at))
	if low+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}
