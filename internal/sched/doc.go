// Package sched runs one model: it queues requests, lets the model's batching core decide
// which requests form a batch, and runs each batch on an instance.
//
// # Goroutines
//
// The scheduler starts one goroutine per instance and no others. There is no goroutine
// that decides. Submit leaves the request's call in the intake, and the goroutine that holds
// the lock reports it to the core: the one that submits it, if the lock is free. Instances'
// goroutines step the core, too, and so do the pacer when a time has come, and the scheduler
// of another model when it gives up a turn of the device. Whichever goroutine stepped the core
// carries out the actions that the core returned. [New] starts the instances' goroutines and
// [Scheduler.Close] waits for them.
//
// # Ownership
//
// A call is one request in the scheduler. It has up to three holders: the goroutine in
// [Scheduler.Submit], the core until it answers the call, and the batch that the call is in.
// Each releases the call once, and the last release returns it to its pool. So Submit
// can return at the caller's deadline while the batch still reads the inputs: the batch
// holds the call, and the call holds a reference to the inputs' memory. And it can return with a
// stream of responses while the core still waits for the end of the batch.
//
// Outputs of a batch are not copied. Each response is a view of its rows, and holds a
// reference to the memory that all responses of the batch share.
package sched
