// Package automatic is the batching policy for what the user did not set: how
// large batches get, how long requests are held for company, and how many batches
// run at once.
//
// It is greedy (whatever waits goes as soon as an instance is free) unless
// something that it has measured says that another way is better, and by how much.
// All that it measures is of the model and of its traffic, and every constant is a
// ratio, so that a model that is a thousand times slower is treated the same.
//
// A [Policy] is a state machine like the core that asks it: it has no goroutine,
// clock, channel or lock, and does not allocate once it is made. What it leaves
// out is how times are measured before there is traffic; that is a [batching.Profile], and
// somebody else's work. docs/batching.md tells how it decides.
package automatic
