// Command mutations checks that the tests notice defects. It changes one place of the code
// at a time, as mutations.txt says, runs the tests of the package, and records in
// results.txt whether they failed:
//
//	go run ./test/mutations                    # those that have no result yet, or whose package has changed
//	go run ./test/mutations -only '^S2[78]$'   # only these
//	go run ./test/mutations -minutes 10        # begin nothing after ten minutes; the next run continues
//	go run ./test/mutations -together          # all at once: says which packages notice, and records nothing
//
// The source tree is not touched: go test reads the changed file through -overlay.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	var o options
	var minutes int
	flag.StringVar(&o.only, "only", "", "only mutations whose identifier matches this `expression`")
	flag.BoolVar(&o.again, "again", false, "also those whose package has not changed since their last result")
	flag.BoolVar(&o.together, "together", false, "all at once, except for harmless ones")
	flag.IntVar(&minutes, "minutes", 0, "begin nothing after this many `minutes`; 0 means no limit")
	flag.Parse()
	o.limit = time.Duration(minutes) * time.Minute
	if err := o.run(".", os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "mutations:", err)
		os.Exit(1)
	}
}
