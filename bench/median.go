package main

import (
	"fmt"
	"slices"
	"time"
)

// median of at least one value.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// percentile of at least one duration, in microseconds.
func percentile(samples []time.Duration, percent int) float64 {
	sorted := slices.Sorted(slices.Values(samples))
	return float64(sorted[(len(sorted)-1)*percent/100].Nanoseconds()) / 1000
}

// ratio is a share for people.
func ratio(a, b float64) string { return fmt.Sprintf("%.2f", a/b) }
