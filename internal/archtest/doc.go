// Package archtest keeps the module as ARCHITECTURE.md draws it. It has tests
// only: what imports what, which packages decide and never act, and that the
// path of a request names what exists. Each failure says what to do.
//
// The rules read the sources of all platforms and build tags, so a breach in a
// file that this machine does not compile is found as well.
package archtest
