//go:build !race

package automatic_test

// slower is how many times longer a simulation takes than without the race detector.
const slower = 1
