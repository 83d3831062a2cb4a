// Package batchingtest checks the guarantees of the batching core. A [Referee] observes
// each step of a core, and reports the first violated guarantee in a sentence. The
// fuzzer, the random sequences and the tests of the core's callers use the same referee.
//
// It is slow and simple on purpose: it searches lists where the core has links and heaps,
// and recounts where the core keeps counters. It shares no code with the core.
package batchingtest
