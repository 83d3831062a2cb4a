// Command matrix compares the automatic policy with the best static settings, cell
// by cell, in virtual time, and prints the gates as a table:
//
//	go run ./test/matrix            # the cells that its constants were chosen with
//	go run ./test/matrix -heldout   # those that they were not
//
// Results are kept, one a line, and what is there is not run again. Those of the
// static settings stay when the policy changes.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	var o options
	flag.BoolVar(&o.heldOut, "heldout", false, "the cells that no constant was chosen with")
	flag.StringVar(&o.folder, "results", "bin/matrix", "the `folder` that results are kept in")
	flag.StringVar(&o.only, "only", "", "only cells whose name matches this `expression`")
	flag.BoolVar(&o.oracle, "oracle", false, "only the static settings, and no policy")
	flag.IntVar(&o.worst, "worst", 5, "how many of the worst cells are named for each gate")
	flag.Parse()
	if err := o.run(os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "matrix:", err)
		os.Exit(1)
	}
}
