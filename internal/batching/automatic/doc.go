// Package automatic implements the batching policy for settings that the configuration
// omits: the batch size, how long requests are held for further requests, and how many
// batches run in parallel.
//
// The policy is greedy, that is, it runs all waiting requests as soon as an instance is
// free, unless its measurements show that another decision is better. It measures only
// the model and its traffic, and every constant is a ratio, so that decisions do not
// depend on the speed of the model.
//
// A [Policy] is a state machine, like the [batching.Core] that calls it: it has no
// goroutine, clock, channel or lock, and does not allocate after New. Calibration, which
// measures a model before it has traffic, is not part of this package; its result is a
// [batching.Profile]. docs/explanation/batching.md describes the decisions.
package automatic
