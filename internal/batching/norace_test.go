//go:build !race

package batching_test

// slower is how many times longer a game takes than without the race detector.
const slower = 1
