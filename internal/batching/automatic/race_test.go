//go:build race

package automatic_test

// slower is how many times longer a simulation takes. The race detector has nothing to find in
// a policy that has one caller, so it sees fewer of them.
const slower = 5
