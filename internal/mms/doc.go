// Package mms is the source of the models of a store, as Multi Model Server and
// TorchServe have it: clients register archives, scale their workers, and unregister them
// while the server runs.
//
// A registered version is a [servable.Version] like any other, whose instances are
// processes that run the archive's handler. Its one input and its one output, body, are
// the bodies of requests and answers. Versions of archives are texts: each is served
// under its number of registration, and found by either. What is said over MMS's REST
// API besides a body goes in an envelope, which message.go makes and reads; paths and
// statuses are for package mmshttp.
package mms
