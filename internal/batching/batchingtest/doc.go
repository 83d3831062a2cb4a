// Package batchingtest holds the batching core to its promises. A [Referee] looks
// on while somebody steps a core, and says at the first broken promise which one
// it was, in a sentence. The fuzzer, the random sequences and the tests of
// whoever runs a core use the same one.
//
// It is slow and simple on purpose: it has lists that it searches where the core
// has links and heaps, and it counts anew where the core keeps counts. It shares
// no code with the core.
package batchingtest
