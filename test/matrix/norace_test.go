//go:build !race

package matrix

// raceEnabled reports whether the race detector is enabled.
const raceEnabled = false
