// Package servertest runs the built binary for tests, as its users meet it: on free ports
// of the loopback interface, with a repository that the test has written. It has clients of
// the server, loads to put on it, and the judge of figures that are promised.
package servertest
