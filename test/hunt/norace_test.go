//go:build !race

package hunt

// raceEnabled reports whether the race detector is enabled.
const raceEnabled = false
