// Command compare measures Shoal, the bare engine and other model servers with the
// same models, load and cores, and holds what is promised of Shoal against it:
//
//	go run ./test/compare                        # all that is missing, for 90 minutes at most
//	go run ./test/compare -minutes 0             # nothing: only the page and the tables of what there is
//	go run ./test/compare -short -only '^mlp LitServe'
//
// All servers get the same bytes from the same clients, which are package bench's and
// share the cores with them. Each is looked at once in every cell; where Shoal is not
// clearly ahead, the two are measured again in turn. Results are kept, one a line,
// and what is there is not measured again.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/shoal-serving/shoal/test/measure"
)

type options struct {
	folder  string
	only    string
	minutes float64
	window  time.Duration
	rounds  int
	short   bool

	hold, log string // for behaviours.py
}

func main() {
	var o options
	flag.StringVar(&o.folder, "results", "bin/compare", "the `folder` that results are kept in, and the page goes to")
	flag.StringVar(&o.only, "only", "", "only those whose model and server, such as \"mlp LitServe 0.2.19\", match this `expression`; Shoal is always measured beside them")
	flag.Float64Var(&o.minutes, "minutes", 90, "nothing new is begun after so many `minutes`")
	flag.DurationVar(&o.window, "window", 600*time.Millisecond, "`length` of a window; each measurement has three, after one that does not count")
	flag.IntVar(&o.rounds, "rounds", measure.MinSamples, "how many `times` what is close is measured in turn")
	flag.BoolVar(&o.short, "short", false, "tiny windows and two rounds, to see whether all of it works; kept in a folder of its own")
	flag.StringVar(&o.hold, "hold", "", "only start the `server`, with a handler that takes its time, and say where it is; for behaviours.py")
	flag.StringVar(&o.log, "log", "", "the `file` that such a handler writes to")
	flag.Parse()
	os.Exit(o.main())
}

// main returns the exit status.
func (o *options) main() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var status int
	var err error
	if o.hold != "" {
		status, err = hold(ctx, o.hold, o.log, os.Stdin, os.Stdout)
	} else {
		status, err = o.run(ctx, os.Stdout, os.Stderr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		return 1
	}
	return status
}

// run measures what is missing, and writes what there is. The status is 1 if a
// promise is missed that is not known to be, or if nothing could be judged.
func (o *options) run(ctx context.Context, out, log io.Writer) (status int, err error) {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return 0, err
	}
	if o.short {
		o.folder, o.window, o.rounds = filepath.Join(o.folder, "short"), 200*time.Millisecond, 2
	}
	root, err := filepath.Abs(".")
	if err != nil {
		return 0, err
	}
	if err := os.MkdirAll(filepath.Join(o.folder, "logs"), 0o755); err != nil {
		return 0, err
	}
	kept, err := openResults(filepath.Join(o.folder, "compare.jsonl"), "bin/shoal", o.window)
	if err != nil {
		return 0, err
	}
	r := &run{
		results: kept, folder: o.folder, root: root, window: o.window, rounds: o.rounds, log: log,
		until: time.Now().Add(time.Duration(o.minutes * float64(time.Minute))),
	}
	var measured error
	for _, m := range subjects() {
		if o.minutes <= 0 {
			break
		}
		all := slices.DeleteFunc(servers(), func(s *server) bool { return !s.ours && !only.MatchString(m.name+" "+s.name) })
		if !slices.ContainsFunc(all, func(s *server) bool { return !s.ours || only.MatchString(m.name+" "+s.name) }) {
			continue
		}
		if measured = r.subject(ctx, m, all); measured != nil {
			break
		}
	}
	if measured == nil && o.only == "" && !o.short && o.minutes > 0 {
		measured = r.troubles(ctx)
	}
	rep := newReport(kept, o.window)
	failed, err := rep.write(o.folder, out)
	return min(1, failed), errors.Join(measured, err)
}
