// Package simulate runs the batching core in virtual time.
//
// A [World] is the machinery: a device, the models that share it, and a clock
// that jumps from one event to the next. A [Scenario] is what a person writes:
// arrivals, a model's curve, and settings to compare. Running one gives a [Report]
// with the timeline and the latencies of each setting, as text or as a picture.
//
// Nothing here decides how requests are batched; that is package batching, which
// the server runs too.
package simulate
