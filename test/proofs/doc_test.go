//go:build e2e

// Package proofs measures what is promised of the built binary. In CI each test is short,
// and its bounds have room for a busy machine, but not for a server that takes twice as
// long. With -strict a test takes its time, runs models of real size, and is judged by package
// measure. Tests with the build tag proofs run only like that.
package proofs
