// Package mms keeps models in the way of Multi Model Server and TorchServe: archives
// of a model store are registered, scaled to so many workers, and taken away again by
// clients while the server runs.
//
// A registered version is a scheduler with a queue of its own and workers that come
// and go. Its workers are processes of [python.Engine], whose model is the handler of
// the archive: each request and each answer is one piece of bytes, which message.go
// makes and reads. What protocols say of all this is for package mmshttp.
//
// Nothing of [repository.Repository] is used: versions there are numbers of a
// directory, and here they are texts that archives have, and that clients choose
// between.
package mms
