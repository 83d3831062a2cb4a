//go:build !race

package matrix

// slower says that the race detector is on.
const slower = false
