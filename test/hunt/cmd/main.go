// Command hunt runs the automatic policy with many seeds, and reports the runs in which it
// was stuck.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/test/hunt"
)

func main() {
	if err := run(os.Stdout); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run writes the runs that were stuck, and the total, to out.
func run(out io.Writer) error {
	from := flag.Uint64("from", hunt.FreshSeeds, "first seed")
	runs := flag.Uint64("runs", 100_000, "number of seeds")
	workers := flag.Int("workers", runtime.GOMAXPROCS(0), "runs at a time")
	flag.Parse()

	began := time.Now()
	var next, stuck atomic.Uint64
	var wait sync.WaitGroup
	for range *workers {
		wait.Go(func() {
			for i := next.Add(1) - 1; i < *runs; i = next.Add(1) - 1 {
				if f := hunt.Try(*from + i); f.Stuck() {
					stuck.Add(1)
					_, _ = fmt.Fprintln(out, f)
				}
			}
		})
	}
	wait.Wait()
	total := fmt.Sprintf("seeds %d to %d: %d of %d runs stuck, in %v", *from, *from+*runs-1, stuck.Load(), *runs, time.Since(began).Round(time.Second))
	if stuck.Load() > 0 {
		return errors.New(total)
	}
	_, err := fmt.Fprintln(out, total)
	return err
}
