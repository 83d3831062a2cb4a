// Package sched runs one model: it queues requests, lets the model's batching
// core choose which go together, and runs each batch on an instance.
//
// # Goroutines
//
// There is one goroutine for each instance, and no other. The goroutine that
// submits a request tells the core itself, and the one that runs an instance
// takes its batches itself; the core's actions are carried out by whichever of
// them caused it to act. [New] starts the instances' goroutines and
// [Scheduler.Close] waits for them.
//
// # Who owns what
//
// A call is one request on its way through the scheduler. It has two holders: the
// goroutine in [Scheduler.Submit], and the core, or the batch that the core put it
// in. Each lets go once, and the last one returns the call to its pool. So a
// caller that is answered at its deadline leaves at once, while the batch, which
// may still be reading its inputs, goes on holding the call, and through it a
// count of the inputs' memory.
//
// Outputs of a batch are not copied. Each response views its rows, and holds a
// count of the memory that all of them share.
package sched
