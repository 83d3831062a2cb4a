// Package calibrate finds out about a model what its configuration leaves out:
// whether rows of several requests may share a batch, how long batches take, and
// with how many instances and threads it computes the most.
//
// What to measure next and what follows from it are pure functions; see [Next] and
// [Choose]. [Measure] does it, on whatever runs the model, and a [Store] keeps it
// for the next start. When a model is measured, and what becomes of it then, is for
// others.
package calibrate
