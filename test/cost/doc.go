// Package cost is a gate for continuous integration: what a request costs the server, in
// instructions, allocations and goroutines, compared with release 0.1.0.
//
// Times on a shared machine differ by more than a regression that matters. So the server runs
// under callgrind, which counts the instructions that it executes in user space. The count is
// the same on a busy machine, to less than a percent.
package cost
