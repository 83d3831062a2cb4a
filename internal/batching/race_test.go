//go:build race

package batching_test

// slower is how many times longer a game takes. The race detector has nothing to
// find in a core that has one caller, so it sees fewer of them.
const slower = 10
