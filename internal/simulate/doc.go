// Package simulate runs the batching core in virtual time.
//
// A [World] is the event loop: a device, the models that share it, and a clock that jumps
// from one event to the next. A [Scenario] is the user's input: arrivals, the curve of a
// model, and the settings to compare. Running a scenario gives a [Report] with the
// timeline and the latencies of each setting.
//
// This package makes no batching decisions: it uses package batching, as the server does.
// Package scenario reads scenarios from files, and package render draws reports.
package simulate
