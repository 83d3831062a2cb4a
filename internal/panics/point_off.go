//go:build !faults

package panics

// Point is a place at which tests of the binary make the server panic, by its name. It does
// nothing unless the binary was built with the tag faults.
func Point(string) {}
