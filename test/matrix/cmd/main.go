// Command cmd compares the automatic policy with the best static settings in virtual time,
// and prints the verdict of each gate as a table:
//
//	go run ./test/matrix/cmd            # the cells with which the policy's constants were chosen
//	go run ./test/matrix/cmd -heldout   # other cells
//
// It stores results, one per line, and does not run stored ones again. A change of the
// policy keeps the results of the static settings.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	var o options
	flag.BoolVar(&o.heldOut, "heldout", false, "run the cells that were not used to choose constants")
	flag.StringVar(&o.folder, "results", "bin/matrix", "`folder` of stored results")
	flag.StringVar(&o.only, "only", "", "run only cells whose name matches this regular `expression`")
	flag.BoolVar(&o.oracle, "oracle", false, "run only the static settings, not the policy")
	flag.IntVar(&o.worst, "worst", 5, "number of worst cells to list for each gate")
	flag.Parse()
	if err := o.run(os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "matrix:", err)
		os.Exit(1)
	}
}
