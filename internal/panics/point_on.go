//go:build faults

package panics

import "os"

// armed is the file whose content is the name of the point that panics next.
var armed = os.Getenv("TESTED_FAULT_FILE")

// Point panics if the file that TESTED_FAULT_FILE names contains its name, and removes the
// file: each file is one panic, and a file that is gone shows that it happened.
func Point(name string) {
	if armed == "" {
		return
	}
	text, err := os.ReadFile(armed)
	if err != nil || string(text) != name || os.Remove(armed) != nil {
		return
	}
	panic("injected at " + name)
}
