// Package kserve is what the faces of the KServe v2 inference protocol have in
// common: what they ask of a server or a gateway, how requests and answers are
// written in JSON and in the binary tensor extension, and which status an error
// has.
//
// It holds the limits of what a client may send, too, so that all faces keep the
// same ones.
//
// It reads and writes bytes that it is given. Sockets, routes and methods belong
// to the faces themselves, in the packages below this one. It starts no
// goroutine and reads no clock.
//
// Names and texts are Triton's where clients may depend on them. The three
// places where it differs are meant: a mistake in a client's JSON is the
// client's (400, where Triton says 500), a number that does not fit its type is
// refused (Triton wraps it around), and so is an answer that JSON cannot express
// (Triton writes Infinity, which no client can read).
package kserve
