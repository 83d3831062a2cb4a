//go:build !race

package placement

// slower is how much slower the race detector makes the code.
const slower = 1
