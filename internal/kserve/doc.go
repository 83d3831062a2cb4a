// Package kserve has the parts that all protocol frontends of the KServe v2 inference
// protocol share: the interfaces that a server implements for them, the encoding of requests
// and responses as JSON and in the binary tensor extension, and the mapping of errors to
// status codes.
//
// It also defines the limits of what a client may send, so that all protocols enforce the
// same ones.
//
// It works on bytes in memory, and starts no goroutines; the limits of time for HTTP bodies and
// answers (progress.go) are all that reads the clock. Routes and methods belong to the
// protocol packages, which import this one.
//
// Names and messages are Triton's where clients may depend on them. It deviates on purpose
// in three places: invalid JSON is the client's error (400, where Triton returns 500), a
// number that does not fit its type is rejected (Triton wraps it around), and so is a
// response that JSON cannot represent (Triton writes Infinity, which no client can parse).
package kserve
