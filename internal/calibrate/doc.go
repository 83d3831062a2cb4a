// Package calibrate measures what a model's configuration does not set: whether rows of
// several requests may share a batch, how long batches take, and which number of instances
// and threads gives the highest throughput.
//
// What to measure next, and what to conclude, are pure functions: [Next] and [Choose].
// [Measure] takes the measurements on any [Runner], and a [Store] keeps them for the next
// start. Package servable decides when to measure a model and applies the result.
package calibrate
